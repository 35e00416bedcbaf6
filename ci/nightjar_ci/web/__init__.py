"""What is asked over the network: pages (http), registries (registry, login), package indexes (package_index)."""

"""Clients for the network: HTTP, container registries and package indexes."""

"""Nightly images in a registry: packing, push, publication by tag, the nightly index and signatures."""

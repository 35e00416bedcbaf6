"""Nightly images in a registry: packed, pushed, published by tag, listed in the nightly index, signed, retained."""

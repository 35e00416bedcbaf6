"""Nightly images in a registry: pushed (pack, push), published (publish), listed (nightly_index, index_store)."""

"""Parallelism: meshes, sharding, ring attention, pipelines, overlapped matrix products and a broadcast."""

"""Facts of GPUs and clusters, each with its source."""

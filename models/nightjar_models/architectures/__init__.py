"""Model architectures, one readable Flax NNX file each."""

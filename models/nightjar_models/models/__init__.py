"""One readable Flax NNX file per model."""

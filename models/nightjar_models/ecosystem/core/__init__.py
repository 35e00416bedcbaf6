"""Cells of JAX, Flax and Optax themselves: features whose breaks have reached their users."""

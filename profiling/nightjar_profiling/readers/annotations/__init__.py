"""Host ranges that XLA and JAX name themselves: compilation, launches, and their nesting."""

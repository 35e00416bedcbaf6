"""The workloads that a JAX nightly must keep alive: real models, one trainer, the facts of what XLA emitted."""

"""The workloads that a JAX nightly must keep alive: real models, one trainer, the facts of XLA's output."""

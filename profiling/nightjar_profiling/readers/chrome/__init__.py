"""Readers of JSON: Chrome's trace events of PyTorch, JAX, Perfetto or any other program, and results of rocprofv3."""

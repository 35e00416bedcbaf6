"""Reader of Chrome's trace events in JSON: of PyTorch (Kineto), of JAX, of Perfetto, of any other program."""

"""Custom operations: RMSNorm in C++ and CUDA through XLA's FFI, and in Pallas."""

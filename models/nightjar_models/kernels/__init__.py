"""Operations of our own: RMSNorm in C++ and CUDA through XLA's FFI, and in Pallas."""

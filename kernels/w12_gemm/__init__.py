"""W12 GEMM: the torch oracle."""

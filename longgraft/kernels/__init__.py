"""Compiled kernels, optional: C++ for passes of few rows on a CPU, Triton for what graphs leave on CUDA."""

"""Compiled kernels, optional: C++ for passes on a CPU, Triton for what graphs leave on CUDA."""

"""Compiled kernels for passes of few rows on a CPU: optional, built where a compiler is at hand."""

"""Clock, devices, memory use, the KV cache and CUDA graphs."""

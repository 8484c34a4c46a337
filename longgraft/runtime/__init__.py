"""Clock, devices, memory, the key-value cache and CUDA graphs."""

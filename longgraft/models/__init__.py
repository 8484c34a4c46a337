"""Models by name, and GGUF files: where a target's files are, fetched and dequantised where they must be."""

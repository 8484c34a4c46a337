"""Models by name, and GGUF files: where a target's files are, and how they are fetched and dequantized."""

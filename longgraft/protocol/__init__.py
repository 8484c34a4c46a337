"""The protocols of memories and proposers, from which every method is built."""

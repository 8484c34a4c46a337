"""Methods to compare with: each registers through the entry points that methods from outside use."""

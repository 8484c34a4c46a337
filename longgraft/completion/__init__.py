"""Code completion with a whole repository as context."""

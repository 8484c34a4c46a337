"""The endpoints, a file per family."""

"""Files from outside and files that are kept: how they are read, written, locked and named in errors."""

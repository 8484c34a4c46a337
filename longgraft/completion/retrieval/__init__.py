"""Which passages of a repository a cursor needs."""

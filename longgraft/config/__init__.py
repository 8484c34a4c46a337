"""Options: what can be chosen, how it is read, and how methods are named."""

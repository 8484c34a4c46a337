"""Options: what there is to choose, how it is read, and how methods are named."""

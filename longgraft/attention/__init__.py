"""Attention of a few new rows over a long prefix and over each other."""

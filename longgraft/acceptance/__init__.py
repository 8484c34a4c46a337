"""Decides which drafted tokens are accepted, and draws the target's token after them."""

"""Which drafted tokens are accepted, and the target's token after them."""

"""Drafters: proposers that run a network, and the policies that prune EAGLE-3 trees."""

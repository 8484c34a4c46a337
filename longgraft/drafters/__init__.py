"""Proposers that several methods share: EAGLE-3's drafter, the policies that prune its trees, and the matrix."""

"""The decoding loop, and a target with one method that opens requests."""

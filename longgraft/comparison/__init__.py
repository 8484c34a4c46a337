"""Compares an answer with plain decoding's: levels of losslessness, and a plain session to compare with."""

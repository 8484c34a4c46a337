"""Retrieval of the passages of a repository that help at a cursor."""

"""Answers over HTTP, as editors and chat clients ask for them."""

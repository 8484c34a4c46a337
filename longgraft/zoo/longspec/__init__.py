"""LongSpec (arXiv 2502.17421): a drafter with a constant cache."""

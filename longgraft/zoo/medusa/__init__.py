"""Medusa (arXiv 2401.10774): heads that guess several tokens ahead."""

"""The endpoints, one file for each family of them."""

"""DFlash (arXiv 2602.06036): a block of tokens in one forward."""

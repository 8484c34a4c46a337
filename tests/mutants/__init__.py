"""Small errors in the sources, planted in a copy: `mutations.py` is the command."""

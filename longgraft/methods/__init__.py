"""What a method is, what it is built from, and where it is found."""

"""How far a guess is right, and what the target draws after it."""

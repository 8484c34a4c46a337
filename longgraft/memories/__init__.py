"""What is learnt from observations."""

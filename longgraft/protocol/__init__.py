"""Who learns and who guesses: the protocols that everything else is written against."""

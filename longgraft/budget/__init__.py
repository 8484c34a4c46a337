"""The budget of a step: its cost, its expected tokens, and how many nodes it verifies."""

"""What a step costs, what it is expected to bring, and how many nodes it spends."""

"""What is in a repository: its files, what they define and what they import."""

"""The content of a repository: its files, their definitions and their imports."""

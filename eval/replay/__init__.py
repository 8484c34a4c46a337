"""Replays of recorded answers without a model: what a method would have proposed, and what that costs."""

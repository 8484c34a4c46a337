"""Prompts for completion: lays out snippets and a cursor's file as token ids."""

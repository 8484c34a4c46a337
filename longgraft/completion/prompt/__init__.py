"""From snippets and a cursor to the token ids of a prompt."""

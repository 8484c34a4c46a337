"""The fields of request bodies, answers and errors."""

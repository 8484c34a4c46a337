"""Request bodies, answers and errors, as clients write and read them."""

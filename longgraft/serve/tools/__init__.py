"""Tool calls: how model families write them, grammars of answers with calls, and a reader of such answers."""

"""An HTTP server for editors and chat clients, which answers with a session."""

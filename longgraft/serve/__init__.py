"""A session as an HTTP server for editors and chat clients."""

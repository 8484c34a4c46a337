"""The engine: the decoding loop, and sessions that open requests on one target with one method."""

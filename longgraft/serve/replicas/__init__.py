"""Replicas of the server on a Ray cluster, and one front that clients call (`longgraft serve --ray`).

The front is the ordinary HTTP server: the same socket, deadlines, access control and draining. It has no
model. It reads a request's body, and calls a replica through a handle of Ray Serve. A replica is an actor
that runs the ordinary application.

Ray Serve's own HTTP proxy is not used: it hands a request to the router before the body has arrived, so it
cannot route by prefix, and it has none of our options. Ray Serve's own prefix router is not used either,
because it cannot be imported without vLLM or SGLang. Ours (`prefix_routes.py`) needs no Ray.
"""

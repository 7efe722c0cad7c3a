"""API dialects of the gateway: one file for each route, with everything in which it differs from the others.

`gateway.routes` is the registry.
"""

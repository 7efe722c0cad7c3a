"""Upstreams: their targets and hosts, the order in which they are tried, and one attempt at one of them."""

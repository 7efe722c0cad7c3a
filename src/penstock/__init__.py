"""Penstock: a benchmark and a gateway for LLM servers."""

__version__ = "0.2.0.dev0"

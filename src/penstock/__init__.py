"""Penstock: benchmark LLM servers and say truthfully how fast they were."""

__version__ = "0.1.0"

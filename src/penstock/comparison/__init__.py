"""Differences between runs and their certainty."""

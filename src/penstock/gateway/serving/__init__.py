"""The processes: the main one that watches, the workers that serve, and what they share."""

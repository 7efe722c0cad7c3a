"""A mock model server with known timing."""

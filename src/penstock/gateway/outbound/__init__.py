"""The way back: the chain of filters that a reply passes, and the response to the caller."""

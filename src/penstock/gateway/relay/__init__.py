"""The path of one request: from the caller through the checks to a provider, and the reply back."""

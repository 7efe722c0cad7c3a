"""One request on its way: from the caller through the checks to a provider, and the reply on its way back."""

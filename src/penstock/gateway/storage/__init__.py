"""What outlives a request besides the ledger and the limits: the owners of responses, and files that a process owns."""

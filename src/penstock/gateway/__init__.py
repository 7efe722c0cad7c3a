"""The gateway: callers in front, providers behind, policy and a ledger between."""

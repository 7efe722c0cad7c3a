"""The gateway: a proxy between callers and LLM providers with keys, limits, guardrails and a usage ledger."""

from __future__ import annotations

import re
from typing import ClassVar

import pytest

from penstock.gateway.resources.file import ResourceErrors, parse_resources
from penstock.gateway.resources.snapshot import Snapshot


class Files:
    """Parses resource files given as text. Provides a file head, a provider key, a model and a caller key."""

    ENVIRONMENT: ClassVar = {"UPSTREAM": "sk-upstream", "CALLER": "sk-caller", "LEAK": "hush-hush-secret"}
    HEAD = '_format_version: "1"\n'
    UP = "provider_keys: [{display_name: up, provider: openai, adapter: openai, api_key: sk-up}]\n"
    GPT = "models: [{display_name: gpt, provider: openai, model_name: gpt-4o-mini, provider_key: up}]\n"
    ME = "api_keys: [{display_name: me, key_env: CALLER, allowed_models: ['*']}]\n"

    def read(self, *parts: str) -> Snapshot:
        return parse_resources((self.HEAD + "".join(parts)).encode(), self.ENVIRONMENT)

    def errors(self, *parts: str, head: str = HEAD) -> list[str]:
        """Return the errors without their line numbers."""
        return [re.sub(r" \(line \d+\)$", "", error) for error in self.numbered_errors(*parts, head=head)]

    def numbered_errors(self, *parts: str, head: str = HEAD) -> list[str]:
        with pytest.raises(ResourceErrors) as caught:
            parse_resources((head + "".join(parts)).encode(), self.ENVIRONMENT)
        for error in caught.value.errors:
            assert "hush" not in error
            assert "sk-" not in error
            assert error in str(caught.value)
        return caught.value.errors

from __future__ import annotations

import pytest

from support.resource_files import Files


@pytest.fixture
def files() -> Files:
    return Files()

from __future__ import annotations

import pytest
from made_files import Files


@pytest.fixture
def files() -> Files:
    return Files()

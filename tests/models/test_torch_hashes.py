"""Jobs whose models are networks of PyTorch and JAX have the bits and the values that they had: see `hashes.py`."""

from __future__ import annotations

import pytest
from hashes import wrong


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", ["mcmahan", "others"])
def test_as_before(part: str) -> None:
    """Each job in a reduced form."""
    assert not wrong("models", part)

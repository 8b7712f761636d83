"""Which cases of a test are long."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def long_unless(short: Callable[..., bool], cases: Iterable[Any]) -> list[Any]:
    """Parameters of a test: of these cases, those that are not `short` are for `make test-long`."""
    given = [case if type(case) is tuple else (case,) for case in cases]
    return [pytest.param(*case, marks=() if short(*case) else pytest.mark.long) for case in given]

"""Settings of privacy without a proof, and what to do instead."""

from __future__ import annotations

from typing import Any

import pytest

from mpifed import Privacy
from mpifed.core.refusals import messages
from mpifed.maths.privacy.settings import conflicts

GIVEN: dict[str, Any] = {"delta": 1e-5, "clip": 1.0, "epsilon": 1.0}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"trust": "central", "level": "client", "sampling": "poisson"},
        {"trust": "distributed", "level": "client"},
        {"noise": "paper"},
    ],
)
def test_what_goes_together(settings: dict[str, Any]) -> None:
    assert messages(conflicts(Privacy(**GIVEN, **settings))) == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"trust": "central"}, ['use trust = "local", or level = "client"']),
        ({"trust": "distributed"}, ['use trust = "local", or level = "client"']),
        ({"level": "client", "sampling": "poisson"}, ['with trust = "central"']),
        ({"level": "client", "trust": "distributed", "sampling": "poisson"}, ['with trust = "central"']),
        ({"sampling": "poisson"}, ['use level = "client" with trust = "central"']),
        ({"noise": "paper", "level": "client"}, ['stated for level = "sample"']),
    ],
)
def test_what_does_not_go_together(settings: dict[str, Any], expected: list[str]) -> None:
    said = messages(conflicts(Privacy(**GIVEN, **settings)))
    assert len(said) == len(expected)
    for message, part in zip(said, expected, strict=True):
        assert message.startswith("[privacy] ") and part in message

"""Settings of privacy without a proof, and what to do instead."""

from __future__ import annotations

from typing import Any

import pytest

from mpifed import Privacy
from mpifed.maths.privacy.accounting import wrong_combination

DELTA = 1e-5


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"trust": "central", "level": "client", "sampling": "poisson"},
        {"trust": "distributed", "level": "client"},
        {"accounting": "paper", "noise_on": "upload"},
    ],
)
def test_what_goes_together(settings: dict[str, Any]) -> None:
    assert wrong_combination(Privacy(delta=DELTA, **settings)) == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"level": "client", "noise_on": "gradients"}, ['use noise_on = "upload"']),
        ({"trust": "central", "noise_on": "gradients"}, ['or trust = "local"']),
        ({"trust": "distributed", "noise_on": "gradients"}, ['or trust = "local"']),
        ({"level": "client", "sampling": "poisson"}, ['use trust = "central"']),
        ({"level": "client", "trust": "distributed", "sampling": "poisson"}, ['use trust = "central"']),
        ({"sampling": "poisson"}, ['use level = "client" with trust = "central"']),
        ({"accounting": "paper"}, ['stated for noise_on = "upload"']),
        ({"accounting": "paper", "level": "client"}, ['stated for level = "sample"']),
        ({"accounting": "paper", "trust": "central"}, ['stated for trust = "local"']),
    ],
)
def test_what_does_not_go_together(settings: dict[str, Any], expected: list[str]) -> None:
    messages = wrong_combination(Privacy(delta=DELTA, **settings))
    assert len(messages) == len(expected)
    for message, part in zip(messages, expected, strict=True):
        assert message.startswith("[privacy] ") and part in message

"""Settings of privacy without a proof, and what to do instead."""

from __future__ import annotations

from typing import Any

import pytest

from mpifed import Privacy
from mpifed.core.errors import UsageError
from mpifed.maths.privacy.accounting import epsilon, wrong_combination

DELTA = 1e-5


def test_epsilon_without_a_proof_is_refused() -> None:
    with pytest.raises(UsageError, match='use sampling = "poisson", or adjacency = "replace-one"'):
        epsilon({(1.0, 0.1): 3}, DELTA, adjacency="add-remove", sampling="fixed")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sampling": "poisson"},
        {"adjacency": "add-remove", "sampling": "poisson"},
        {"accountant": "rdp", "distribution": "float"},
        {"trust": "central", "level": "client", "sampling": "poisson", "adjacency": "add-remove"},
        {"trust": "distributed", "level": "client", "adjacency": "add-remove"},
        {"trust": "local", "level": "client", "adjacency": "add-remove"},
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
        ({"adjacency": "add-remove"}, ['or adjacency = "replace-one"']),
        ({"adjacency": "add-remove", "trust": "distributed"}, ['or adjacency = "replace-one"']),
        ({"adjacency": "add-remove", "level": "client", "trust": "central"}, ['or adjacency = "replace-one"']),
        ({"accounting": "paper"}, ['stated for noise_on = "upload"']),
        ({"accounting": "paper", "level": "client"}, ['stated for level = "sample"']),
        ({"accounting": "paper", "trust": "central"}, ['stated for trust = "local"']),
        (
            {"accounting": "paper", "noise_on": "upload", "sampling": "poisson", "adjacency": "add-remove"},
            ['stated for adjacency = "replace-one"', 'stated for sampling = "fixed"'],
        ),
    ],
)
def test_what_does_not_go_together(settings: dict[str, Any], expected: list[str]) -> None:
    messages = wrong_combination(Privacy(delta=DELTA, **settings))
    assert len(messages) == len(expected)
    for message, part in zip(messages, expected, strict=True):
        assert message.startswith("[privacy] ") and part in message


def test_whole_batches_are_not_amplified() -> None:
    assert wrong_combination(Privacy(delta=DELTA, adjacency="add-remove"), amplified=False) == []

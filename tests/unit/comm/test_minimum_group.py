"""Groups too small for a sum to hide anybody, against counting place by place."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from mpifed.comm.channels.base import Protection, refuse_small, small
from mpifed.comm.sums import Message
from mpifed.core.errors import TooFewClients
from mpifed.core.exchange import Exchange, Field
from mpifed.core.holdings import Holdings
from mpifed.core.round import Leaving, Round

OWN = Holdings(9, np.array([0, 0, 1, 1, 2, 1]), (slice(0, 4), slice(3, 8), np.array([2, 8])))


class Parts(NamedTuple):
    """A record within a record."""

    columns: Any
    back: Any


class Upload(NamedTuple):
    """One of each kind."""

    everybody: Any
    parts: Parts
    of_one: Any


def message(name: str = "up", own: Holdings | None = OWN) -> Message:
    parts = Parts(Field((2, 9), held=own, axis=1), Field((9,), held=own, to_holders=True))
    return Message(Exchange(name, Upload(Field((3,)), parts, Field((4,), sender=4)), *3 * [lambda *_: ()]), 6)  # type: ignore[arg-type]


def counted(present: Any) -> dict[str, int]:
    """The least number of clients present behind any value; what alone goes back to who sent it does not count."""
    held = np.zeros((6, 9), dtype=bool)
    for client in range(6):
        held[client, OWN.of(client)] = present[client]
    behind = held.sum(axis=0).tolist()
    columns, back = (min([n for n in behind if n > least], default=0) for least in (0, 1))
    return {"everybody": int(present.sum()), "parts.columns": columns, "parts.back": back, "of_one": int(present[4])}


@pytest.mark.parametrize("least", [1, 2, 4])
def test_small_names_what_would_show_too_few(least: int) -> None:
    for bits in range(64):
        present = np.array([bits >> client & 1 for client in range(6)], dtype=bool)
        expected = {f"up.{name}": count for name, count in counted(present).items() if 0 < count < least}
        assert dict(small(message(), Protection("masked", least), present)) == expected, present
        for allowed in ("up", "up.parts", "up.parts.columns", "up.part", "up.of_one", "u", "down"):
            left = {name: n for name, n in expected.items() if not f"{name}.".startswith(f"{allowed}.")}
            assert dict(small(message(), Protection("masked", least, (allowed,)), present)) == left, present


def test_a_sum_of_too_few_answers_is_refused_by_name_on_all_ranks() -> None:
    """Answers count, and not those who hear: of four who are asked, one leaves before its answer, two after theirs."""
    present = np.array([1, 1, 1, 1, 0, 0], dtype=bool)
    now = Round(5, 1, present, leaving=Leaving(present, np.array([0, 1, 1, 2, 2, 2]), 3)).at(0)
    refuse_small(message(own=None), Protection("masked", 3), now)
    with pytest.raises(TooFewClients, match=r"up\.everybody: round 5 .* 3 client.*min_clients = 4") as caught:
        refuse_small(message(own=None), Protection("masked", 4), now)
    assert caught.value.agreed and caught.value.exit_code == 1

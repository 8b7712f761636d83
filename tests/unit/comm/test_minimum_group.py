"""Groups too small for a sum to hide anybody; `test_sums.py` counts who is behind each place."""

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


UPLOAD = Upload(Field((3,)), Parts(Field((9,), held=OWN), Field((9,), held=OWN, to_holders=True)), Field(sender=4))
MESSAGE = Message(Exchange("up", UPLOAD, *3 * [lambda *_: ()]), 6)  # type: ignore[arg-type]


@pytest.mark.parametrize("least", [1, 2, 4])
def test_small_names_what_would_show_too_few(least: int) -> None:
    """What alone goes back to who sent it does not count, nor what the job allows by a name."""
    for bits in range(64):
        present = np.array([bits >> client & 1 for client in range(6)], dtype=bool)
        counts = {place.name: place.fewest(present) for place in MESSAGE.places}
        for allowed in ("", "up", "up.parts", "up.parts.columns", "up.part", "up.of_one", "u", "down"):
            expected = {n: k for n, k in counts.items() if 0 < k < least and not f"{n}.".startswith(f"{allowed}.")}
            assert dict(small(MESSAGE, Protection("masked", least, (allowed,)), present)) == expected, present


def test_a_sum_of_too_few_answers_is_refused_by_name_on_all_ranks() -> None:
    """Answers count, and not those who hear: of four who are asked, one leaves before its answer, two after theirs."""
    present = np.array([1, 1, 1, 1, 0, 0], dtype=bool)
    now = Round(5, 1, present, leaving=Leaving(present, np.array([0, 1, 1, 2, 2, 2]), 3)).at(0)
    refuse_small(MESSAGE, Protection("masked", 3, ("up.parts",)), now)
    with pytest.raises(TooFewClients, match=r"up\.everybody: round 5 .* 3 client.*min_clients = 4") as caught:
        refuse_small(MESSAGE, Protection("masked", 4, ("up.parts",)), now)
    assert caught.value.agreed and caught.value.exit_code == 1

"""Groups too small for a sum to hide anybody, against counting place by place."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from mpifed.comm.accumulate import make_sum
from mpifed.comm.channel import Protection
from mpifed.comm.exchange_plan import ExchangePlan
from mpifed.comm.minimum_group import check_groups, fewest, refuse_small, small

from mpifed.core.errors import TooFewClients, UsageError
from mpifed.core.exchange import Field, ToServer
from mpifed.core.holdings import Cells, Holdings
from mpifed.core.round import Leaving, Round

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FEATURES, CLIENTS, SENDER = 9, 6, 4


class Parts(NamedTuple):
    """A record within a record."""

    columns: Any
    across: Any


class Answer(NamedTuple):
    """One of each kind."""

    everybody: Any
    parts: Parts
    of_one: Any


def exchange(name: str = "up") -> Any:
    fields = Answer(
        Field((3,)), Parts(Field((FEATURES, 2), columns=0), Field((2, FEATURES), columns=1)), Field((4,), sender=SENDER)
    )
    return ToServer(name, fields, None, None, None)  # type: ignore[arg-type]


def plan(columns: Cells, name: str = "up") -> ExchangePlan:
    one = exchange(name)
    return ExchangePlan(one, partial(make_sum, one, CLIENTS, dtype="float64"), columns)


def holdings(seed: int) -> tuple[Cells, list[set[int]]]:
    """Groups of columns as they come, slices among them, and each client's columns."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 5))
    members: list[Any] = []
    for number in range(count):
        if number % 2:
            start = int(rng.integers(FEATURES - 1))
            members.append(slice(start, int(rng.integers(start + 1, FEATURES + 1))))
        else:
            members.append(np.sort(rng.choice(FEATURES, int(rng.integers(1, FEATURES + 1)), replace=False)))
    groups = rng.integers(0, count, CLIENTS)
    held = [set(np.arange(FEATURES)[members[group]].tolist()) for group in groups]
    return Cells.of_columns(Holdings(FEATURES, groups, tuple(members))), held


def counted(kind: str, held: Sequence[set[int]], present: Any) -> int:
    """The least number of clients present behind any value that is not surely zero; 0 where there is none."""
    if kind == "everybody":
        return int(present.sum())
    if kind == "of_one":
        return int(present[SENDER])
    fillers = [sum(1 for c, own in enumerate(held) if present[c] and column in own) for column in range(FEATURES)]
    return min([count for count in fillers if count], default=0)


NAMES = {
    "up.everybody": "everybody",
    "up.parts.columns": "columns",
    "up.parts.across": "columns",
    "up.of_one": "of_one",
}


def test_fewest_is_what_counting_finds() -> None:
    for seed in range(60):
        columns, held = holdings(seed)
        present = np.random.default_rng(seed + 1000).random(CLIENTS) < 0.6
        places = plan(columns).sum.places
        assert [place.name for place in places] == list(NAMES), seed
        for place in places:
            expected = counted(NAMES[place.name], held, present)
            assert fewest(place, columns, present) == expected, (place.name, present, seed)


@pytest.mark.parametrize("least", [1, 2, 4])
def test_small_names_what_would_show_too_few(least: int) -> None:
    for seed in range(60):
        columns, held = holdings(seed)
        present = np.random.default_rng(seed + 2000).random(CLIENTS) < 0.6
        counts = {name: counted(kind, held, present) for name, kind in NAMES.items()}
        expected = {name: count for name, count in counts.items() if 0 < count < least}
        found = dict(small(plan(columns), columns, Protection("masked", least), present))
        assert found == expected, seed
        for allowed in ("up", "up.parts", "up.parts.columns", "up.part", "up.of_one", "u", "down"):
            covered = {name for name in NAMES if name == allowed or name.startswith(allowed + ".")}
            left = dict(small(plan(columns), columns, Protection("masked", least, (allowed,)), present))
            assert left == {name: count for name, count in expected.items() if name not in covered}, seed


OWN = Cells.of_columns(Holdings(FEATURES, np.array([0, 0, 1, 1, 2, 1]), (slice(0, 4), slice(4, 8), np.array([8]))))


def test_a_job_with_groups_too_small_is_refused_with_the_line_that_mends_it() -> None:
    plans = [plan(OWN), plan(OWN, "down")]
    with pytest.raises(UsageError) as caught:
        check_groups(plans, OWN, Protection("masked"))
    text = str(caught.value)
    for name in ("up", "down"):
        for field in ("parts.columns", "parts.across", "of_one"):
            assert text.count(f"{name}.{field} (1)") == 1, text
    assert "everybody" not in text
    (pasted,) = re.findall(r"\[aggregation\] (allow = \[.*\])", text)
    allow = tuple(tomllib.loads(pasted)["allow"])
    assert allow == ("up", "down")
    check_groups(plans, OWN, Protection("masked", allow=allow))
    for dropped in allow:
        with pytest.raises(UsageError, match=rf"{dropped}\.parts"):
            check_groups(plans, OWN, Protection("masked", allow=tuple(name for name in allow if name != dropped)))
    check_groups(plans, OWN, Protection("masked", min_clients=1))


def now(present: Any, halves: Any = None, most: int = 0) -> Round:
    present = np.asarray(present, dtype=bool)
    if halves is None:
        return Round(5, 1, present)
    return Round(5, 1, present, leaving=Leaving(present, np.asarray(halves), most)).at(0)


def test_a_sum_of_too_few_answers_is_refused_by_name_on_all_ranks() -> None:
    columns, settings = Cells.of_columns(Holdings.all(CLIENTS, FEATURES)), Protection("masked", 3, ("up.of_one",))
    refuse_small(plan(columns), columns, settings, now([1, 1, 0, 0, 1, 0]))
    with pytest.raises(TooFewClients, match=r"up\.everybody: round 5 .* 2 client.*min_clients = 3") as caught:
        refuse_small(plan(columns), columns, settings, now([1, 0, 0, 0, 1, 0]))
    assert caught.value.agreed
    assert caught.value.exit_code == 1


def test_answers_count_and_not_those_who_hear() -> None:
    """Of four who are asked, one leaves before its answer, two after theirs."""
    columns, present = Cells.of_columns(Holdings.all(CLIENTS, FEATURES)), [1, 1, 1, 1, 0, 0]
    halves = [0, 1, 1, 2, 2, 2]
    refuse_small(plan(columns), columns, Protection("masked", 3, ("up.of_one",)), now(present, halves, 3))
    with pytest.raises(TooFewClients, match="uploads of 3 client"):
        refuse_small(plan(columns), columns, Protection("masked", 4, ("up.of_one",)), now(present, halves, 3))

"""Maps of nodes, and which way of adding up long arrays is chosen."""

from __future__ import annotations

from mpifed.comm.nodes import NodeMap
from mpifed.comm.reductions import parts
from mpifed.comm.tuning import Trial


def test_nodes_are_numbered_by_their_lowest_ranks() -> None:
    found = NodeMap.of(["b", "b", "a", "b", "a", "c"])
    assert found.nodes == (0, 0, 1, 0, 1, 2)
    assert found.many == 3
    assert [found.rank_within(rank) for rank in range(6)] == [0, 1, 0, 2, 1, 0]
    assert [found.size_of(rank) for rank in range(6)] == [3, 3, 2, 3, 2, 1]
    assert found.ranks_of(1) == [2, 4]
    assert NodeMap.even(5, 2).nodes == (0, 0, 1, 1, 2)


def test_parts_are_even_and_whole() -> None:
    assert [(one.start, one.stop) for one in parts(7, 3)] == [(0, 3), (3, 5), (5, 7)]
    assert [(one.start, one.stop) for one in parts(1, 3)] == [(0, 1), (1, 1), (1, 1)]


def choose(seconds: dict[str, float]) -> tuple[str | None, int]:
    """What is chosen where each way always takes so long, and after how many tries."""
    trial, tries = Trial(tuple(seconds)), 0
    while trial.chosen is None:
        trial.add(name := trial.next(), seconds[name])
        tries += 1
    return trial.chosen, tries


def test_the_fastest_way_is_chosen() -> None:
    assert choose({"direct": 1.0, "scatter": 0.9, "nodes": 0.5}) == ("nodes", 9)


def test_what_is_hardly_faster_is_not_worth_it() -> None:
    assert choose({"direct": 1.0, "nodes": 0.95})[0] == "direct"


def test_what_is_far_behind_is_tried_once() -> None:
    assert choose({"direct": 1.0, "scatter": 30.0, "nodes": 1.0}) == ("direct", 7)


def test_the_library_is_always_compared_with() -> None:
    assert choose({"direct": 3.0, "nodes": 1.0}) == ("nodes", 4)

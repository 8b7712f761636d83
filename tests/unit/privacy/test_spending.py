"""What clients have released, and the epsilons it comes to: against the accountants called by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mpifed import Privacy
from mpifed.maths.privacy import accounting, paper
from mpifed.maths.privacy.release import Release
from mpifed.privacy import spending as spending_module
from mpifed.privacy.calibration import _growth
from mpifed.privacy.ledger import finite, most_within
from mpifed.privacy.spending import Costs, Group, Spending, undone

DELTA = 1e-4
PRIVACY = Privacy(delta=DELTA, clip=1.0, noise_multiplier=1.0)


def release(multiplier: Any, rate: Any = 1.0, mechanisms: int = 1, clients: int = 4, **changes: Any) -> Release:
    ones = np.ones(clients)
    stated = {"paper_multiplier": 2 * multiplier * ones, "paper_rate": rate * ones / 2}
    return Release(mechanisms, multiplier * ones, rate * ones, **(stated | changes))


def present(*clients: int, of: int = 4) -> NDArray[np.bool_]:
    return np.isin(np.arange(of), clients)


def by_hand(spent: dict[tuple[float, float], int]) -> float:
    """What is drawn as integers has a billionth of delta set aside for how close they are."""
    return accounting.epsilon(spent, DELTA * (1 - 1e-9))


def test_nothing_is_free() -> None:
    assert Spending(PRIVACY, 4).costs() == Costs(0.0, 0.0, 0.0)
    silent = Spending(PRIVACY, 4)
    silent.add(release(np.inf), present(0, 1))
    assert silent.costs()[:2] == (0.0, 0.0)


def test_rounds_are_counted_for_those_present() -> None:
    spending = Spending(PRIVACY, 4)
    for who in [(0, 1, 2), (0, 1), (0,), (0, 1)]:
        spending.add(release(5.0, 0.25, mechanisms=3), present(*who))
    assert spending.rounds.tolist() == [4, 3, 1, 0]
    found = spending.costs()
    assert found.epsilon == by_hand({(5.0, 0.25): 12})
    assert found.epsilon_unamplified == accounting.unamplified({(5.0, 0.25): 12}, DELTA * (1 - 1e-9))
    assert found.epsilon_paper == pytest.approx(paper.composed({(10.0, 0.125): 12}, DELTA), rel=1e-12)
    assert found.epsilon_unamplified > found.epsilon > 0


def test_all_count_where_who_takes_part_is_secret() -> None:
    spending = Spending(PRIVACY, 4)
    spending.add(release(3.0, 0.5, by_chance=True), present(1))
    assert spending.rounds.tolist() == [1, 1, 1, 1]
    assert [group.clients.tolist() for group in spending.groups()] == [[0, 1, 2, 3]]


def test_releases_that_differ_are_composed() -> None:
    spending = Spending(PRIVACY, 4)
    for multiplier in (4.0, 5.0, 4.0):
        spending.add(release(multiplier, 0.5), present(0, 2))
    spending.add(release(np.array([4.0, 5.0, 6.0, 7.0]), 0.5), present(0, 1, 2, 3))
    (whole, other) = ({(4.0, 0.5): 3, (5.0, 0.5): 1}, {(4.0, 0.5): 2, (5.0, 0.5): 1, (6.0, 0.5): 1})
    spents = {tuple(group.clients.tolist()): group.spent for group in spending.groups()}
    assert spents == {(0,): whole, (2,): other, (1,): {(5.0, 0.5): 1}, (3,): {(7.0, 0.5): 1}}
    assert spending.worst() == by_hand(whole) > by_hand(other)


def test_the_worst_is_the_worst_of_all() -> None:
    """Rates, multipliers and counts at random: no client spends more than what is found without asking each."""
    rng = np.random.default_rng(3)
    spending = Spending(PRIVACY, 12)
    rate, multiplier = rng.choice([0.05, 0.1, 0.2], 12), rng.choice([2.0, 3.0], 12)
    for _ in range(6):
        spending.add(release(multiplier, rate, clients=12), rng.random(12) < 0.5)
    every = [by_hand(group.spent) for group in spending.groups()]
    assert spending.worst() == max(every)
    assert len(undone(spending.groups())) < len(every)


@pytest.mark.parametrize("levels", [256, 3])
def test_who_is_undone_was_outdone_by_one_who_is_kept(levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With multipliers that change from round to round: each mechanism is paired with one that tells as much."""
    monkeypatch.setattr(spending_module, "_LEVELS", levels)
    rng = np.random.default_rng(5)
    spending = Spending(PRIVACY, 40)
    rate = rng.choice([0.1, 0.2, 0.3], 40)
    for t in range(12):
        spending.add(release(2.0 + rng.choice([0.1 * t, 0.0]), rate, clients=40), rng.random(40) < 0.5)
    groups = spending.groups()
    kept = undone(groups)
    assert 0 < len(kept) < len(groups)

    def mechanisms(group: Group) -> list[float]:
        return sorted(m for (m, _), count in group.spent.items() for _ in range(count))

    def rates(group: Group) -> set[float]:
        return {q for _, q in group.spent}

    for group in groups:
        if not any(group is one for one in kept):
            assert any(
                min(rates(one)) >= max(rates(group))
                and len(mechanisms(one)) >= len(mechanisms(group))
                and all(a <= b for a, b in zip(mechanisms(one), mechanisms(group), strict=False))
                for one in kept
            )


def test_a_copy_goes_its_own_way() -> None:
    spending = Spending(PRIVACY, 4)
    spending.add(release(2.0), present(0))
    other = spending.copy()
    other.add(release(2.0), present(0))
    assert (spending.rounds[0], other.rounds[0]) == (1, 2)
    assert spending.worst() == by_hand({(2.0, 1.0): 1}) < other.worst() == by_hand({(2.0, 1.0): 2})


@pytest.mark.parametrize("target", [1.0, 3.0])
def test_noise_covers_every_client(target: float) -> None:
    """Much noise and no sampling beside little noise and rare sampling: the heavier of the two is not the worst."""
    spending = Spending(PRIVACY, 2)
    both = release(np.array([4.0, 0.5]), np.array([1.0, 0.02]), clients=2)
    spending.add(both, present(0, 1, of=2))
    factor = _growth(spending, target)
    costs = [by_hand({(factor * m, q): 1}) for m, q in zip(both.multiplier, both.rate, strict=True)]
    assert max(costs) <= target < 1.001 * max(costs)
    assert undone(spending.groups())[0].clients.tolist() == [int(np.argmin(costs))]


def test_without_noise_epsilon_is_infinite() -> None:
    spending = Spending(PRIVACY, 4)
    spending.add(release(0.0, 0.5), present(0, 1, 2))
    assert finite(spending.costs()) == dict.fromkeys(Costs._fields)
    assert spending.worst() == np.inf


def test_the_paper_says_nothing_where_anybody_does_what_it_does_not_treat() -> None:
    spending = Spending(PRIVACY, 4)
    spending.add(release(2.0, 0.5, paper_multiplier=np.array([1.0, np.nan, 1.0, 1.0])), present(0, 2))
    assert np.isfinite(spending.worst_paper())
    spending.add(release(2.0, 0.5, paper_multiplier=np.array([1.0, np.nan, 1.0, 1.0])), present(1))
    assert np.isnan(spending.worst_paper())
    assert finite(spending.costs())["epsilon_paper"] is None


@pytest.mark.parametrize("most", [0, 1, 2, 3, 7, 8, 100])
def test_most_within(most: int) -> None:
    for limit in (0, 1, 2, 3, 5, 8, 99, 1000):
        asked: list[int] = []

        def within(count: int, limit: int = limit, asked: list[int] = asked) -> bool:
            asked.append(count)
            return count <= limit

        assert most_within(within, most) == min(limit, most)
        assert all(1 <= count <= most for count in asked)

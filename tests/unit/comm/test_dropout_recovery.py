"""Clients who leave within an exchange: the sum of the others, or no sum at all."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from lengths import covering
from masking import check_alike, errors_of, leaving, play, vector
from mpifed.comm.channel import ChannelSetting, Protection
from mpifed.comm.keys import Keyring
from mpifed.comm.masking.channel import Masked
from mpifed.comm.masking.dropout_recovery import threshold
from mpifed.comm.masking.share_deposits import TurnSecrets
from sparse_masks import sparsest

from mpifed.core.errors import BrokenProtocol, TooFewClients, UsageError
from mpifed.core.exchange import ToClients, ToServer
from mpifed.core.holdings import Cells
from mpifed.core.round import Round
from mpifed.testing import Solo

TWO = Protection("masked", max_dropouts=2)


@covering(
    {
        "kind": [ToServer, ToClients],
        "before, after": [([], []), ([0], []), ([], [5]), ([0, 5], []), ([], [1, 2]), ([3], [4]), ([1, 2], [])],
        "hosted": [[[0, 1, 2, 3, 4, 5]], [[], [0, 1, 2], [3, 4, 5]], [[5], [1, 0], [4, 2, 3]]],
    }
)
def test_without_those_who_leave(kind: Any, before: list[int], after: list[int], hosted: list[list[int]]) -> None:
    case = vector(kind=kind, hosted=hosted, protection=TWO, now=leaving(6, 2, before, after))
    found = check_alike(case, turns=2)
    assert all(heard.channel._dropouts.turn_secrets.seeds == {} for heard in found)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [ToServer, ToClients])
def test_sparse_graphs_with_some_asked(seed: int, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty of 24 clients are asked, with 8 neighbours each, of whom up to 3 leave."""
    monkeypatch.setattr(Masked, "neighbours", sparsest)
    rng = np.random.default_rng(seed)
    asked = np.ones(24, dtype=bool)
    asked[rng.permutation(24)[:4]] = False
    gone = rng.permutation(np.flatnonzero(asked))[:3]
    cut = int(rng.integers(4))
    now = leaving(24, 3, gone[:cut].tolist(), gone[cut:].tolist(), asked)
    protection = Protection("masked", max_dropouts=3)
    hosted = [[], *(part.tolist() for part in np.array_split(rng.permutation(24), 3))]
    check_alike(vector(24, hosted=hosted, kind=kind, protection=protection, now=now))


def test_who_has_left_comes_back() -> None:
    """Turn after turn others leave, under the same keys."""
    case = vector(protection=TWO)
    channel, plan = case._replace(hosted=[list(range(6))]).channel(Solo()), case.plan()
    channel.prepare([plan])
    opened = set()
    for gone in ([], [1], [2, 3], [1, 5], []):
        now = leaving(6, 2, gone)
        channel.begin(plan, now)
        here = np.flatnonzero(now.present)
        channel.add(plan, case.of(here), here, now)
        plan.sum.message[-1] = 0
        assert channel.collect(plan, now)
        np.testing.assert_allclose(plan.sum.total(plan.reduced), case.answer[here].sum(0), atol=2.0**-38)
        opened.add(plan.sum.message[:-1].tobytes())
    assert len(opened) == 5


def test_the_answer_of_one_who_left_before_it_was_in_stays_hidden() -> None:
    """Its pair masks are opened, its own mask is not: nobody hands over that share as well."""
    case = vector(hosted=[list(range(6))], protection=TWO, now=leaving(6, 2, [4]))
    channel = play(case)[0].channel
    secrets = channel._dropouts.turn_secrets
    with pytest.raises(BrokenProtocol, match="client 0 is asked for its shares of both secrets of client 4"):
        secrets.reveal(0, 4, 1, answered=True)
    with pytest.raises(BrokenProtocol, match="client 5 is asked for its shares of both secrets of client 3"):
        secrets.reveal(5, 3, 5, answered=False)
    assert secrets.reveal(0, 4, 1, answered=False) == secrets.reveal(0, 4, 1, answered=False)


# --- shares that are changed, missing, or too few ------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ToServer, ToClients])
@pytest.mark.parametrize("gone", [[], [1]])
def test_a_sealed_share_changed_on_its_way(kind: Any, gone: list[int]) -> None:
    def change(channel: Any, plan: Any) -> None:
        if channel.comm.rank == 2:
            shares = channel._dropouts.turn_secrets.held
            changed = [one[:9] + bytes([one[9] ^ 4]) + one[10:] for one in shares[1]]
            channel._dropouts.turn_secrets.held = shares | {1: changed}

    for error in errors_of(vector(kind=kind, protection=TWO, now=leaving(6, 2, gone)), change):
        assert isinstance(error, BrokenProtocol)
        assert "does not open" in str(error)


@pytest.mark.parametrize("gone", [[], [1]])
@pytest.mark.parametrize("kind", [ToServer, ToClients])
def test_a_share_changed_as_it_is_handed_over(kind: Any, gone: list[int]) -> None:
    """The reconstructed secret is not what client 1 has committed to: nothing is opened, with its answer or without."""
    case = vector(kind=kind, protection=TWO, now=leaving(6, 2, gone))
    for error in errors_of(case, changing(lambda one: one._replace(share=os.urandom(16) + b"\0"))):
        assert isinstance(error, BrokenProtocol)
        assert "not what the client has committed to" in str(error) or "do not belong to one secret" in str(error)


def changing(change: Any, giver: int = 1) -> Any:
    """Rank 1 hands over something else of client `giver`'s: what `change` makes of it, or nothing."""

    def meddle(channel: Any, plan: Any) -> None:
        reveal = channel._dropouts._reveal

        def changed(*arguments: Any) -> Any:
            found = [change(one) if one.giver == giver else one for one in reveal(*arguments)]
            return [one for one in found if one is not None]

        if channel.comm.rank == 1:
            channel._dropouts._reveal = changed

    return meddle


def test_more_have_left_than_may() -> None:
    """Of five neighbours it takes three: every rank refuses the sum when there are two, and hands over nothing."""
    now = leaving(6, 4, [0, 1], [2, 3])
    handed = []

    def watch(channel: Any, plan: Any) -> None:
        channel._dropouts._reveal = lambda *_: handed.append(1)

    for error in errors_of(vector(protection=TWO, now=now), watch):
        assert isinstance(error, TooFewClients)
        assert "more than [participation] max_dropouts = 2 have left" in str(error)
    assert not handed


# --- what cannot be ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("neighbours", "most"), [(0, 1), (2, 1), (3, 2), (4, 2), (99, 50)])
def test_no_majority_would_stay(neighbours: int, most: int) -> None:
    with pytest.raises(UsageError, match=rf"dropouts = {most}: each .* has {neighbours} .* needs {2 * most + 1}"):
        threshold(neighbours, most)


@pytest.mark.parametrize(("neighbours", "most"), [(3, 1), (5, 2), (6, 2), (101, 50), (1, 0)])
def test_a_majority_stays(neighbours: int, most: int) -> None:
    assert neighbours / 2 < threshold(neighbours, most) <= neighbours - most


def test_a_round_that_asks_too_few() -> None:
    asked = np.array([True, True, True, True, True, False])
    case = vector(hosted=[list(range(6))], protection=TWO, now=Round(4, 1, asked))
    with pytest.raises(TooFewClients, match=r"round 4 asks 5 clients, and for .* max_dropouts = 2 it takes 6"):
        play(case)


# --- one client's secrets ------------------------------------------------------------------------------------------


def secrets(turn: int = 5) -> TurnSecrets:
    ring = Keyring(ChannelSetting(Solo(), np.arange(6), 6, Cells.all(6)))
    ring.prepare()
    return TurnSecrets(ring, turn)


def test_shares_open_for_their_holder_alone() -> None:
    """And in their turn alone."""
    kept = secrets()
    kept.held = {0: kept.deposit(0, [1, 2, 3], [1, 2, 3], 2).shares}
    kept.reveal(2, 0, 2, True)
    with pytest.raises(BrokenProtocol, match="does not open"):
        kept.reveal(3, 0, 2, True)
    later = TurnSecrets(kept.keyring, 6)
    later.held = kept.held
    with pytest.raises(BrokenProtocol, match="does not open"):
        later.reveal(2, 0, 2, True)

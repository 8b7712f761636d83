"""Masks that nobody can take off: none is used twice, none can be predicted, and few shares open none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from masking import Case, vector
from mpifed.comm.channel import Protection
from mpifed.comm.masking.secret_sharing import rebuild

from mpifed.comm.mpi import Solo
from mpifed.core.errors import BrokenProtocol
from mpifed.core.exchange import ToClients, ToServer

CLIENTS, SIZE, TURNS = 6, 50, 9
HERE = [list(range(CLIENTS))]  # all on one rank
KINDS = pytest.mark.parametrize("kind", [ToServer, ToClients])


class Sent:
    """A recorder of uploads by client, and of notes by what they are."""

    def __init__(self) -> None:
        self.uploads: dict[int, Any] = {}
        self.notes: dict[str, list[tuple[str, bytes]]] = {}

    def upload(self, plan: Any, now: Any, client: int, upload: Any) -> None:
        self.uploads[client] = upload.copy()

    def passed_on(self, plan: Any, now: Any, message: Any) -> None:
        pass

    def note(self, plan: Any, now: Any, sender: str, receiver: str, what: str, payload: bytes) -> None:
        self.notes.setdefault(what, []).append((sender, payload))


def masks_of(case: Case, turns: int) -> tuple[Any, list[Sent]]:
    """([turns, clients, m] what each client has added to its integers in each turn, what was sent in each turn)."""
    channel, plan, everybody = case.channel(Solo()), case.plan(), np.arange(CLIENTS)
    channel.prepare([plan])
    masks, recorded = [], []
    for _ in range(turns):
        sent = channel.recorder = Sent()  # type: ignore[assignment]
        channel.begin(plan, case.round)
        channel.add_one_by_one(plan, case.answer, everybody, case.round)
        plan.sum.message[-1] = 0
        channel.collect(plan, case.round)
        masks.append([sent.uploads[client] - plan.integers(case.answer, client, client) for client in everybody])
        recorded.append(sent)
    return np.array(masks), recorded


def vectors(kind: Any, most: int) -> Case:
    return vector(CLIENTS, SIZE, HERE, kind=kind, protection=Protection("masked", max_dropouts=most))


@KINDS
@pytest.mark.parametrize("most", [0, 2])
def test_no_number_of_a_mask_comes_again(kind: Any, most: int) -> None:
    """In no turn, of no client, at no position, and not with the other sign: of 64 bits none does by chance."""
    masks, _ = masks_of(vectors(kind, most), TURNS)
    assert masks.shape == (TURNS, CLIENTS, SIZE) and masks.all()
    assert len(np.unique(np.abs(masks))) == masks.size


@pytest.mark.parametrize(("kind", "most"), [(ToServer, 2), (ToClients, 0)])
def test_what_does_not_cancel_is_new_in_every_turn_and_run(kind: Any, most: int) -> None:
    """Masks of pairs cancel in the sum of all. What is left are self-masks, or streams that the server cannot make."""
    sums = np.array([masks_of(vectors(kind, most), TURNS)[0].sum(axis=1) for _ in range(2)])
    assert sums.all()
    assert len(np.unique(np.abs(sums))) == sums.size


def opened(shares: dict[int, bytes]) -> bytes | None:
    """What shares open; None where they belong to no secret."""
    try:
        return rebuild(shares, len(shares))
    except BrokenProtocol:
        return None


def test_fewer_shares_than_a_majority_are_of_no_use() -> None:
    """Six clients of whom two may leave: each has five holders, and three shares open its seed, two open nothing."""
    _, (sent,) = masks_of(vectors(ToServer, 2), 1)
    for client in range(CLIENTS):
        notes = sent.notes[f"share of the seed of client {client}"]
        shares = dict(enumerate((share for _, share in notes), 1))
        assert len(shares) == CLIENTS - 1
        (seed,) = {opened({n: shares[n] for n in numbers}) for numbers in ((1, 2, 3), (2, 3, 5), (1, 4, 5))}
        assert seed is not None
        assert all(opened({a: shares[a], b: shares[b]}) != seed for a in shares for b in shares if a < b)

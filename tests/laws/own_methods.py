"""Methods that a user derives from mpifed's and changes in part, named in jobs as "own_methods:..."."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jobs.examples.own_local_steps import LocalSteps
from mpifed import FedAvg, FedPDM
from mpifed.algorithms.refused_steps import check_rows
from mpifed.algorithms.ssca import SSCAHorizontal
from mpifed.core.record import map_leaves


class Two(NamedTuple):
    change: Any
    square: Any


def _doubled(self: Any, clients: Any, question: Any, block: Any, now: Any) -> Any:
    clients, upload = SSCAHorizontal.answer(self, clients, question, block, now)
    return clients, upload._replace(value=map_leaves(lambda leaf: leaf * 2, upload.value))


def _in_place(self: Any, own: Any, sent: Any, change: Any, local: Any) -> Any:
    assert len(change) == len(local.weight) == len(change[:, :1])
    change *= 4
    change[:] = change / 2
    return change


def _spoil(self: Any, own: Any, sent: Any, local: Any) -> None:
    sent.model[:] /= 2


def _accumulate(self: Any, own: Any, sent: Any, local: Any) -> Any:
    own += 0.001
    return own


def _raw(local: Any) -> Any:
    """The sum of the first row of each client."""
    return local.block.take(local.block.draw(local.now, "minibatch", 1)).X[:, 0].sum()


def _check(self: Any) -> list[str]:
    return check_rows(self.problem, self.batch_size)


def _thoughtful(self: Any, *given: Any) -> Any:
    assert self.client_optimizer.momentum > 0
    return LocalSteps.answer(self, *given)


def _count(self: Any, memory: Any, mean: Two, done: Any) -> Any:
    assert abs(mean.square - 3) < 1e-6
    return memory, mean.change


def _named(base: type, classes: dict[str, dict[str, Any]]) -> None:
    """Classes of these names, which differ from `base` by these methods and values."""
    for name, changed in classes.items():
        globals()[name] = type(name, (base,), {"__module__": __name__} | changed)


_named(FedAvg, {
    "DoubledFedAvg": {
        "upload": lambda self, own, sent, change, local: change * 2,
        "prox_step": lambda self, done: 2 * FedAvg.prox_step(self, done),
    },
    # what all local methods share, and an epsilon counts
    "Answering": {"answer": lambda self, *given: FedAvg.answer(self, *given)},
    "Counted": {"most_steps": 1},
    # whose clients would send something before the rounds that are counted
    "SettingUp": {"setup": property(lambda self: self.exchanges)},
    # whose model would follow from the training loss, as measured without noise
    "ByLoss": {"measured": lambda self, server, columns: (
        server._replace(model=server.model + 1) if "train_loss" in columns else server)},
    # whose upload no factor relates to the local steps; and whose check has left out its base's
    "Unknown": {"gain": None, "upload": lambda self, own, sent, change, local: change**3},
    "Unchecked": {
        "gain": None, "upload": lambda self, own, sent, change, local: change**3, "check": lambda self: [],
    },
    # which write to what they are given, as to any array: to the change, to what all are sent, to what they keep
    "InPlace": {"upload": _in_place},
    "Spoiling": {"push": _spoil},
    "Accumulating": {"start_client": lambda self, x: x * 0, "push": _accumulate},
    # which keeps its upload, and its change, as they are
    "Keeping": {
        "start_client": lambda self, x: Two(x, x),
        "retain": lambda self, own, sent, change, upload, local: own._replace(change=change),
        "renew": lambda self, own, sent, upload, local: own._replace(square=upload),
    },
    # which add what no noise is for: in a push, at the beginning, by local steps that are taken twice
    "Pushing": {"gain": 1.0, "push": lambda self, own, sent, local: _raw(local) * sent.model},
    "Beginning": {"begin": lambda self, own, sent, local: sent.model - _raw(local)},
    "Again": {"gain": 1.0, "upload": lambda self, own, sent, change, local: change + local.change(sent.model)},
    # of two gradients a step, whose refusals are not its base's
    "Unlisted": {
        "gain": 1.0, "conflicts": lambda self: iter(()),
        "descend": lambda self, move, at, model, kept: (move(at) - move(model), None),
    },
    # which also upload how long the change is, a part of it in the same memory, or a whole number
    "InTwoParts": {
        "like": lambda self, x: Two(x, x[:1]),
        "upload": lambda self, own, sent, change, local: Two(change, (change**2).sum(axis=1, keepdims=True)),
        "absorb": lambda self, memory, mean, done: (memory, mean.change),
    },
    "SameTwice": {
        "like": lambda self, x: Two(x, x[-5:]),
        "upload": lambda self, own, sent, change, local: Two(change, change[:, -5:]),
        "absorb": lambda self, memory, mean, done: (memory, mean.change),
    },
    "Counting": {
        "like": lambda self, x: Two(x, x[0]),
        "upload": lambda self, own, sent, change, local: Two(change, np.full(len(local.weight), 3)),
        "absorb": _count,
    },
})  # fmt: skip
_named(SSCAHorizontal, {"DoubledSSCA": {"answer": _doubled}})
# which makes public what its base keeps to itself, and says nothing of that
_named(FedPDM, {"Telling": {"hear": lambda self, own, memory, local: own._replace(dual=own.model)}})
# local steps written out, whose author has not thought of momentum; and with momentum 0, by its author's word
_named(LocalSteps, {"Plain": {"check": _check}, "Thoughtful": {"check": _check, "answer": _thoughtful}})

"""What uploads reveal about private rows, as an own algorithm may declare it to an audit of its runs.

An algorithm may have a method `reveals(received)`: of one client's answer to an exchange, or of the sum that the server
receives, it gives what is in it of the kinds below, as numbers. The audit chooses its attacks by kind. An exchange is
recognized by the method that answers it, `received.answered_by`. Those of this package stand in `mpifed.audit.reveals`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from mpifed.core.exchange import Exchange
from mpifed.core.record import Array
from mpifed.core.round import Round
from mpifed.maths.parameters import Parameters


class Received(NamedTuple):
    """One client's answer, or the sum of several, beside what was asked. Leaves of answers are float64."""

    exchange: Exchange
    round: int
    # records of the exchange's own classes, known to who asks `answered_by`
    question: Any  # of this exchange, or where it asks nothing, of the last one of the round that asks something
    answer: Any  # of one client, without the axis of clients; or the sum
    clients: tuple[int, ...]  # whose answers are in it
    rows: Array  # indices among all rows of those that any of these clients holds
    columns: Array  # which it is about: those that each of these clients holds, or all where they put them together
    now: Round  # who took part in the round, and what all have drawn for it
    earlier: Any = None  # `Received`: what the same clients answered to the exchange before, in the same round

    def answered_by(self, method: Callable[..., object]) -> bool:
        """Whether this method, or function, answers the exchange, whatever the exchange is called."""
        return function_of(self.exchange.answer) is function_of(method)


def function_of(method: Callable[..., object] | None) -> object:
    """The function behind a method, a partial function or a decorated one."""
    if method is None:  # nobody answers
        return None
    method = inspect.unwrap(method.func if isinstance(method, partial) else method)
    return getattr(method, "__func__", method)


class MeanGradient(NamedTuple):
    """The mean gradient of the loss, without penalties, over the rows of a minibatch or over those of several clients.

    The rows of a minibatch of one, or of few, follow from it.
    """

    model: Parameters  # where it was taken, in `Received.columns`
    gradient: Parameters  # in the shapes of `model`; where clients add the gradient of a penalty, take that off
    first: bool = False  # whether it is that only in a client's first round: what clients keep is known only then
    parts: bool = False  # whether each client sends its own columns' part of the gradient of whole rows
    batch: int = 0  # over so many of the rows that entered the exchange; 0: over all of them


class InnerProducts(NamedTuple):
    """Inner products of one client's rows, in its columns, with weights that the server knows."""

    rows: Array  # [b] indices among all rows
    weights: Array  # [p_i, h] in `Received.columns`
    products: Array  # [b, h]


class ScoreDerivatives(NamedTuple):
    """Derivatives of the loss by the scores of rows, with which gradients of the same round are put together."""

    rows: Array  # [b] indices among all rows
    derivatives: Array  # [b, h]


class DualVariables(NamedTuple):
    """Dual variables of one client's rows, or steps of these: the weights of rows in a `DualSum` of the same round.

    Where several clients send values of a row, they add up.
    """

    rows: Array  # [b] indices among all rows
    values: Array  # [b]
    steps: bool = True  # whether they come on top of what the client has sent before, or in its place


class DualSum(NamedTuple):
    """The sum over rows of each row times its dual variable, X'alpha, up to a known factor."""

    values: Array  # [p_i] in `Received.columns`


Revealed: TypeAlias = MeanGradient | InnerProducts | ScoreDerivatives | DualVariables | DualSum

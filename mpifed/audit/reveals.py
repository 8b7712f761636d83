"""What messages reveal of private rows: of this package's methods by a table, of own ones by their `reveals`.

An exchange is known by the function that answers it, whatever it is called and whichever class plays it. Nothing here
is an attack yet: penalties, rates, weights and the clients' first states are public, and are only taken off. With noise
on gradients or uploads, the result is noisy. Messages are records of the exchanges' own classes, and `Any` here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, cast

import numpy as np

from mpifed.algorithms.algorithm import Algorithm
from mpifed.algorithms.bundle import Bundle
from mpifed.algorithms.cells import answer_products
from mpifed.algorithms.cocoa import CoCoA
from mpifed.algorithms.columns import Pass
from mpifed.algorithms.fedasync import Mixed
from mpifed.algorithms.fedcm import WithGradient
from mpifed.algorithms.fednova import Normalized
from mpifed.algorithms.hyfdca import HyFDCA
from mpifed.algorithms.local_method import LocalMethod, LocalSteps
from mpifed.algorithms.more_exchanges import tell
from mpifed.algorithms.own_columns import OwnColumns
from mpifed.algorithms.reveals import (
    DualSum,
    DualVariables,
    InnerProducts,
    MeanGradient,
    Received,
    Revealed,
    ScoreDerivatives,
    function_of,
)
from mpifed.algorithms.ssca import SSCAHorizontal
from mpifed.core.errors import UsageError
from mpifed.core.exchange import fields_of
from mpifed.core.record import Array, Record, bare_leaves, map_leaves
from mpifed.maths.objectives import Parameters, penalty_gradient

Declaration: TypeAlias = Callable[[Any, Received], Iterable[Revealed]]


def revealed(method: Algorithm, received: Received) -> list[Revealed]:
    """What a message reveals: by the method's own `reveals`, or where that says nothing, by who answers.

    Raises UsageError where a method's own declaration is wrong.
    """
    items = _own(method, received)
    if not items:
        answer = function_of(received.exchange.answer)
        name = getattr(answer, "__name__", "")
        line = [vars(kind)[name] for kind in type(method).__mro__ if name in vars(kind)]
        functions = line if answer in line else [answer]  # what is overridden reveals what it did
        says = next((_OF_ANSWERS[function] for function in functions if function in _OF_ANSWERS), None)
        items = list(says(method, received)) if says else []
    return [item for item in items if all(np.isfinite(leaf).all() for leaf in bare_leaves(cast("Record", item)))]


def undeclared(method: Algorithm) -> Iterator[str]:
    """The exchanges of the set-up and of a round of whose answers nobody says what they reveal.

    Known are answers of this package, and those where the method's `reveals` is no older than they are.
    """
    for exchange in (*method.setup, *method.exchanges):
        answer = function_of(exchange.answer)
        known = answer is None or answer.__module__.startswith("mpifed.")
        if isinstance(method, LocalMethod) and answer is LocalMethod.answer:
            known = method.guard.work.gain is not None and method.problem.compression is None
        if isinstance(method, LocalMethod) and answer is tell:
            known = _prepares(method)
        says = type(method).reveals is not Algorithm.reveals
        if not (known or (says and type(method).holds("reveals", getattr(answer, "__name__", "")))):
            yield exchange.name


# --- local steps -----------------------------------------------------------------------------------------------------


def _of_upload(method: LocalMethod, received: Received) -> Iterator[MeanGradient]:
    """From an upload gain (y_i - x) + what is public, or that clients keep: which all know in their first round alone.

    Of several parts it is the first; and a whole gradient beside it. One that was sent before has been taken off.
    """
    upload, sent, clients = received.answer.value, received.question, np.array(received.clients)
    work, model, total = method.guard.work, method.record(np.float64(sent.model)), float(received.answer.weight)
    whole = isinstance(upload, WithGradient)
    if whole:
        yield _of_loss(method, model, method.record(np.float64(upload.gradient) / total))
    rate = _rate(method, received, method.guard.weights[clients])
    if isinstance(upload, Normalized):  # in units of the most steps
        rate = method.rate_of(float(sent.step), method.most_steps)
    if work.gain is None or not rate or method.problem.compression is not None:
        return
    moved = np.float64(bare_leaves(upload)[0])
    if isinstance(upload, Mixed):  # the client's whole model
        moved -= float(upload.weight[0]) * np.float64(sent.model)
    gradient = -moved / (total * work.gain * rate)
    if (drift := method.drift(sent)) is not None:
        gradient -= drift
    before = received.earlier if _prepares(method) else None
    if before is not None:
        gradient += np.float64(before.answer.value) / float(before.answer.weight)
    drawn = method.taken(received.now, clients) * method.batch_size
    yield _of_loss(method, model, method.record(gradient))._replace(
        first=work.remembers and before is None,
        batch=int(np.minimum(method.problem.counts[clients], drawn).sum()) * whole,
    )


def _of_preparation(method: LocalMethod, received: Received) -> Iterator[MeanGradient]:
    """Of methods of this package: the gradient of whole shards."""
    if _prepares(method):
        x, mean = np.float64(received.question.model), np.float64(received.answer.value) / float(received.answer.weight)
        yield _of_loss(method, method.record(x), method.record(mean))


def _prepares(method: LocalMethod) -> bool:
    """Whether what it sends before local steps is the gradient of whole shards, as in this package."""
    return method.prepare is not None and method.prepare.__module__.startswith("mpifed.")


def _of_own_columns(method: OwnColumns, received: Received) -> Iterator[MeanGradient]:
    """From changes of a client's columns, or from models that it keeps."""
    columns, weights = received.columns, method.weights[list(received.clients)]
    model = np.float64(received.question.model.first[columns])
    moved = received.answer.first[columns] / weights.sum() - method.lasting * model
    if rate := _rate(method, received, weights):
        mean = _of_loss(method, Parameters(model, ()), Parameters(-moved / rate, ()))
        yield mean._replace(first=method.lasting)


def _rate(method: LocalSteps, received: Received, weights: Array) -> float:
    """How far a constant gradient moves these clients, on average; drifts, and gradients on the way, count as alike."""
    step, counts = float(received.question.step), method.taken(received.now, np.array(received.clients)).tolist()
    return float(np.average([method.rate_of(step, count) for count in counts], weights=weights))


def _of_loss(method: LocalSteps, model: Parameters, gradient: Parameters) -> MeanGradient:
    """The mean gradient of the loss, of one that clients follow."""
    slopes, decay = penalty_gradient(method.problem.objective, model), method.client_optimizer.weight_decay
    return MeanGradient(model, map_leaves(lambda g, slope, w: g - slope - decay * w, gradient, slopes, model))


def _of_objective(method: Algorithm, received: Received) -> Iterator[MeanGradient]:
    """The first gradient of SSCA's uploads, which has no penalty.

    With recursive variance reduction it is a difference of two gradients on the same rows: of one row still a matrix
    of rank one.
    """
    weight = float(received.answer.weight)
    gradient = map_leaves(lambda leaf: leaf[0] / weight, received.answer.value.gradient)
    yield MeanGradient(received.question.model, gradient)


# --- columns, and cells ----------------------------------------------------------------------------------------------


def _scores(method: Algorithm, received: Received) -> Iterator[InnerProducts]:
    """Partial scores of the rows drawn."""
    question = received.question
    yield InnerProducts(question.rows, question.model.first[received.columns], received.answer.partial)


def _derivatives(method: Algorithm, received: Received) -> Iterator[ScoreDerivatives]:
    """The label holder's derivatives."""
    if fields_of(received.exchange)["slopes"].sender in received.clients:
        yield ScoreDerivatives(received.question.rows, received.answer.slopes[0])


def _parts(method: Algorithm, received: Received) -> Iterator[MeanGradient]:
    """Each client's own part of the gradient, where a pass does not measure."""
    if not received.answer.tally:
        mean = map_leaves(lambda leaf: leaf[0], received.answer.statistics.gradient)
        model, mean = (one._replace(first=one.first[received.columns]) for one in (received.question.model, mean))
        yield MeanGradient(model, mean, parts=True)


def _products(method: Algorithm, received: Received) -> Iterator[InnerProducts]:
    """Inner products of all rows with weights [p] of the question."""
    w, z = received.question.w[received.columns], received.answer.value[received.rows]
    yield InnerProducts(received.rows, w.reshape(len(w), -1), z.reshape(len(z), -1))


def _duals(method: HyFDCA, received: Received) -> Iterator[DualVariables]:
    """Steps of alpha; with line-search, and where clients may be absent, their sum so far."""
    if method.rule != "accelerated":
        steps = method.rule != "line-search" and not received.exchange.keeps
        yield DualVariables(received.rows, received.answer.value[received.rows], steps)


def _dual_sum(method: Algorithm, received: Received) -> Iterator[DualSum]:
    """X'alpha in the columns of the message."""
    yield DualSum(received.answer.pulled[received.columns])


_OF_ANSWERS: dict[object, Declaration] = {
    LocalMethod.answer: _of_upload,
    tell: _of_preparation,
    OwnColumns.answer: _of_own_columns,
    SSCAHorizontal.answer: _of_objective,
    Pass.partial_scores: _scores,
    Pass.tell_slopes: _derivatives,
    Pass.gather: _parts,
    answer_products: _products,
    HyFDCA.answer_duals: _duals,
    HyFDCA.answer_primal: _dual_sum,
    Bundle.answer_plane: _dual_sum,
    CoCoA.answer: lambda method, received: [DualSum(received.answer.w[received.columns])],
}  # by the function that answers

# --- what methods say themselves --------------------------------------------------------------------------------------


def _own(method: Algorithm, received: Received) -> list[Revealed]:
    """What the method's own `reveals` says; whatever it raises, and what the attacks would stumble over, is told."""
    try:
        items = list(method.reveals(received))
        for item in items:
            if not isinstance(item, Revealed):
                raise ValueError(f"{type(item).__name__} is no kind of `mpifed.algorithms.reveals`")
            for leaf in bare_leaves(cast("Record", item)):
                np.isfinite(leaf)
            if isinstance(item, MeanGradient):
                map_leaves(np.subtract, item.gradient, item.model)
    except Exception as error:
        raise UsageError(
            f"{type(method).__name__}.reveals of client {', '.join(map(str, received.clients))} in "
            f'"{received.exchange.name}": {type(error).__name__}: {error}; correct the method: '
            "mpifed/algorithms/reveals.py says what is expected"
        ) from error
    return items

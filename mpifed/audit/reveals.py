"""What messages reveal of private rows: of this package's methods by a table, of own ones by their `reveals`.

An exchange is known by the function that answers it, whatever it is called and whichever class plays it. Nothing here
is an attack yet: penalties, rates, weights and the clients' first states are public, and are only taken off. With noise
on gradients or uploads, the result is noisy. Messages are records of the exchanges' own classes, and `Any` here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, cast

import numpy as np

from mpifed.algorithms.bundle import Bundle
from mpifed.algorithms.cells import answer_products
from mpifed.algorithms.cocoa import CoCoA
from mpifed.algorithms.columns import Pass
from mpifed.algorithms.fednova import Normalized
from mpifed.algorithms.hyfdca import HyFDCA
from mpifed.algorithms.local import LocalSteps
from mpifed.algorithms.local_method import LocalMethod, WithGradient
from mpifed.algorithms.own_columns import OwnColumns
from mpifed.algorithms.ssca import SSCAHorizontal
from mpifed.core.algorithm import Algorithm
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Exchange, fields_of
from mpifed.core.record import Array, Record, bare_leaves, leaves, map_leaves
from mpifed.core.reveals import (
    DualSum,
    DualVariables,
    InnerProducts,
    MeanGradient,
    Received,
    Revealed,
    ScoreDerivatives,
    function_of,
)
from mpifed.maths.objectives import Parameters, penalty_gradient

Declaration: TypeAlias = Callable[[Any, Received], Iterable[Revealed]]


def revealed(method: Algorithm, received: Received) -> list[Revealed]:
    """What a message reveals: by the method's own `reveals`, or where that says nothing, by who answers.

    Raises UsageError where a method's own declaration is wrong.
    """
    items, known = _own(method, received), of_answer(method, received.exchange)
    if known and not items:
        items = list(known(method, received))
    return list(filter(_finite, items))  # masked numbers are arbitrary, and may have been divided by zero


def of_answer(method: Algorithm, exchange: Exchange) -> Declaration | None:
    """What the table says of who answers; of a function that overrides one there, what it says of that."""
    answer = function_of(exchange.answer)
    name = getattr(answer, "__name__", "")
    line = [vars(kind)[name] for kind in type(method).__mro__ if name in vars(kind)]
    functions = line if answer in line else [answer]
    return next((_OF_ANSWERS[function] for function in functions if function in _OF_ANSWERS), None)


def declares(method: Algorithm, exchange: Exchange) -> bool:
    """Whether it is known what answers reveal: those of this package, or where `reveals` is no older than they are."""
    answer = function_of(exchange.answer)
    if answer is LocalMethod.answer:
        return cast("LocalMethod", method).guard.work.gain is not None or _says(method)
    if answer is LocalMethod.tell:
        return _prepares(cast("LocalMethod", method)) or _says(method)
    if answer is None or answer.__module__.startswith("mpifed."):
        return True
    return _says(method) and type(method).holds("reveals", getattr(answer, "__name__", ""))


# --- local steps -----------------------------------------------------------------------------------------------------


def _of_upload(method: LocalMethod, received: Received) -> Iterator[MeanGradient]:
    """From an upload gain (y_i - x) + what is public, or that clients keep: which all know in their first round alone.

    Of several parts it is the first; and a whole gradient beside it. One that was sent before has been taken off.
    """
    work, upload, sent, clients = method.guard.work, received.answer.value, received.question, list(received.clients)
    weights, drift, total = method.guard.weight(np.array(clients)), method.drift(sent), _total(method, received)
    model = map_leaves(np.float64, method.record(sent.model))
    if isinstance(upload, WithGradient):
        yield MeanGradient(model, _of_loss(method, model, method.record(np.float64(upload.gradient) / total)))
    if work.gain is None:
        return
    moved = method.record(np.float64(bare_leaves(upload)[0]) / (total * work.gain))
    whole, before = isinstance(upload, WithGradient), received.earlier if _prepares(method) else None
    if before is not None and drift is not None:
        drift = drift - np.float64(before.answer.value) / _total(method, before)
    steps = method.taken(received.now, np.array(clients))
    rows = np.minimum(method.problem.counts[clients], steps * method.batch_size)
    if isinstance(upload, Normalized):  # in units of the most steps
        norm = method.rate_of(float(sent.step), method.most_steps) / _rate(method, received, weights)
        moved = map_leaves(lambda leaf: leaf / norm, moved)
    for mean in _mean_gradient(method, received, model, moved, weights, work.remembers and not before):
        gradient = mean.gradient if drift is None else map_leaves(np.subtract, mean.gradient, method.record(drift))
        yield mean._replace(gradient=gradient, batch=int(rows.sum()) * whole)


def _of_preparation(method: LocalMethod, received: Received) -> Iterator[MeanGradient]:
    """Of methods of this package: the gradient of whole shards."""
    if _prepares(method):
        mean = np.float64(received.answer.value) / _total(method, received)
        model = map_leaves(np.float64, method.record(received.question.model))
        yield MeanGradient(model, _of_loss(method, model, method.record(mean)))


def _total(method: LocalMethod, received: Received) -> float:
    """The weight of an upload or sum; where it is sealed, the one it must have."""
    weights = method.guard.weight(np.array(received.clients))
    return float(weights.sum() if received.sealed else received.answer.weight)


def _prepares(method: LocalMethod) -> bool:
    """Whether what it sends before local steps is the gradient of whole shards, as in this package."""
    return method.prepare is not None and method.prepare.__module__.startswith("mpifed.")


def _of_own_columns(method: OwnColumns, received: Received) -> Iterator[MeanGradient]:
    """From changes of a client's columns, or from models that it keeps."""
    columns, weights = received.columns, method.weights[list(received.clients)]
    model = np.float64(received.question.model.first[columns])
    moved = np.float64(received.answer.first[columns] / weights.sum())
    moved = Parameters(moved - model if method.lasting else moved, ())
    yield from _mean_gradient(method, received, Parameters(model, ()), moved, weights, method.lasting)


def _mean_gradient(
    method: LocalSteps, received: Received, model: Parameters, moved: Parameters, weights: Array, states: bool
) -> Iterator[MeanGradient]:
    """The mean of the gradients of local steps, at models that hardly differ; nothing where a rate has ended at 0.

    Clients move by step * (drift - gradient - that of the penalties), and drifts are taken as zero, which they are in a
    client's first round: whoever knows them adds them.

    Parameters
    ----------
    moved : how far these clients have come, by their mean with `weights`
    states : whether clients keep states, which all know in their first round alone
    """
    rate = _rate(method, received, weights)
    if rate:
        yield MeanGradient(model, _of_loss(method, model, map_leaves(lambda change: -change / rate, moved)), states)


def _rate(method: LocalSteps, received: Received, weights: Array) -> float:
    """How far a constant gradient moves these clients, on average."""
    step = float(received.question.step)
    counts = method.taken(received.now, np.array(received.clients)).tolist()
    return float(np.average([method.rate_of(step, count) for count in counts], weights=weights))


def _of_loss(method: LocalSteps, model: Parameters, gradient: Parameters) -> Parameters:
    """What of a gradient that clients follow is the loss's: without penalties and weight decay."""
    slopes, decay = penalty_gradient(method.problem.objective, model), method.client_optimizer.weight_decay
    return map_leaves(lambda g, slope, w: g - slope - decay * w, gradient, slopes, model)


def _weight(method: Algorithm, received: Received) -> float:
    """The weight of a `Weighted` upload or sum; where it is sealed, the one it must have."""
    if received.sealed:
        return float(method.problem.weights[list(received.clients)].sum())
    return float(received.answer.weight)


def _of_objective(method: Algorithm, received: Received) -> Iterator[MeanGradient]:
    """The first gradient of SSCA's uploads, which has no penalty.

    With recursive variance reduction it is a difference of two gradients on the same rows: of one row still a matrix
    of rank one, whose row `reconstruct` finds.
    """
    weight = _weight(method, received)
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
        model, mean = (
            record._replace(first=record.first[received.columns]) for record in (received.question.model, mean)
        )
        yield MeanGradient(model, mean, parts=True)


def _inner(both: Callable[[Received], tuple[Array, Array]]) -> Declaration:
    """Inner products of all rows, in the answer, with weights [p] or [p, h] of the question."""

    def declared(method: Algorithm, received: Received) -> Iterator[InnerProducts]:
        weights, products = both(received)
        w, z = weights[received.columns], products[received.rows]
        yield InnerProducts(received.rows, w.reshape(len(w), -1), z.reshape(len(z), -1))

    return declared


def _duals(method: HyFDCA, received: Received) -> Iterator[DualVariables]:
    """Steps of alpha, or their sum so far."""
    beta = float(received.question.number) if method.rule == "accelerated" else 0.0
    lasting = bool(received.exchange.keeps)
    before = (0.0, 0.0) if lasting or method.rule == "line-search" else (1 + beta, -beta)
    yield DualVariables(received.rows, received.answer.value[received.rows], before, lasting)


_OF_ANSWERS: dict[object, Declaration] = {
    LocalMethod.answer: _of_upload,
    LocalMethod.tell: _of_preparation,
    OwnColumns.answer: _of_own_columns,
    SSCAHorizontal.answer: _of_objective,
    Pass.partial_scores: _scores,
    Pass.tell_slopes: _derivatives,
    Pass.gather: _parts,
    answer_products: _inner(lambda received: (received.question.w, received.answer.value)),
    HyFDCA.answer_duals: _duals,
    HyFDCA.answer_primal: lambda method, received: [
        DualSum(received.answer.pulled[received.columns], change=method.rule == "line-search")
    ],
    Bundle.answer_plane: lambda method, received: [DualSum(received.answer.pulled[received.columns], change=False)],
    CoCoA.answer: lambda method, received: [DualSum(received.answer.w[received.columns], change=True)],
}  # by the function that answers

# --- what methods say themselves --------------------------------------------------------------------------------------


def _says(method: Algorithm) -> bool:
    """Whether it has a `reveals` of its own."""
    return type(method).reveals is not Algorithm.reveals


def _own(method: Algorithm, received: Received) -> list[Revealed]:
    """What the method's own `reveals` says."""
    if not _says(method):
        return []
    clients = received.clients
    whose = f"the upload of client {clients[0]}" if len(clients) == 1 else f"the sum of {len(clients)} uploads"
    name = f'{type(method).__name__}.reveals of {whose} in "{received.exchange.name}"'
    try:
        items = list(method.reveals(received))
    except Exception as error:
        raise UsageError(f"{name}: {type(error).__name__}: {error}; correct the method") from error
    for item in items:
        wrong = _wrong_shapes(item, len(received.columns))
        if not wrong and not received.sealed and not _finite(item):
            wrong = f"{type(item).__name__} with numbers that are not finite"
        if wrong:
            raise UsageError(f"{name}: {wrong}; correct the method: mpifed/core/reveals.py says what is expected")
    return items


def _wrong_shapes(item: Revealed, columns: int) -> str:
    """Why a declared item is malformed, in words; "" if it is not."""
    arrays: list[tuple[str, Array, tuple[int | None, ...]]]  # field, value, shape; None is any length
    match item:
        case MeanGradient(model, gradient):
            if not isinstance(model, Parameters):
                return f"MeanGradient with `model` {_form(model)}; Parameters(first, head) is expected"
            if not isinstance(gradient, Parameters) or _form(gradient) != _form(model):
                return f"MeanGradient with `gradient` {_form(gradient)}; that of `model` is expected: {_form(model)}"
            # the parameters of a network belong to no feature
            arrays = [("model.first", model.first, (columns, None))] if bare_leaves(model.first) else []
        case InnerProducts(rows, weights, products):
            arrays = [("weights", weights, (columns, None))]
            arrays.append(("products", products, (np.size(rows), *np.shape(weights)[1:])))
        case ScoreDerivatives(rows, derivatives):
            arrays = [("derivatives", derivatives, (np.size(rows), None))]
        case DualVariables(rows, values):
            arrays = [("values", values, (np.size(rows),))]
        case DualSum(values):
            arrays = [("values", values, (columns,))]
        case _:
            return f"gives a {type(item).__name__}, which is no kind of `mpifed.core.reveals`"
    for field, array, expected in arrays:
        shape = np.shape(array)
        if len(shape) != len(expected) or any(b not in (None, a) for a, b in zip(shape, expected, strict=True)):
            text = ", ".join("any" if size is None else str(size) for size in expected)
            return f"{type(item).__name__} with {field} of shape {list(shape)}; [{text}] is expected"
    return ""


def _form(record: Record) -> str:
    """Type and shapes of a record, for an error."""
    if not isinstance(record, tuple):
        return f"of type {type(record).__name__} and shape {np.shape(record)}"
    if not hasattr(record, "_fields"):
        return "a plain tuple"
    return f"{type(record).__name__}({', '.join(f'{name} {np.shape(leaf)}' for name, leaf in leaves(record))})"


def _finite(item: Revealed) -> bool:
    """Whether all arrays of an item are finite."""
    # the others are plain numbers
    parts = cast("list[Record]", [part for part in item if hasattr(part, "_fields") or hasattr(part, "dtype")])
    return all(bool(np.isfinite(leaf).all()) for part in parts for leaf in bare_leaves(part))

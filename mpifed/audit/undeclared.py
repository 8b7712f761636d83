"""Answers of which the algorithm says nothing, tried as if they were gradients, changes of the model, or products.

Whether a guess is right is seen by its success: the rows that come out of it are those that were there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from mpifed.algorithms.revealed import of_step, wide
from mpifed.audit.reader import Reader
from mpifed.core.record import Array, bare_leaves, leaves, map_leaves, unflat, zeros
from mpifed.core.reveals import InnerProducts, MeanGradient, Received
from mpifed.maths.objectives import Parameters, penalty_gradient

PADDING = 8  # numbers before or behind those of a model, in a vector of all of them
Leaves = list[tuple[str, Any]]


def remarks(reader: Reader) -> Iterator[str]:
    """Whom the algorithm's paper trusts; and what was tried of answers of which the algorithm says nothing."""
    stage = reader.stage
    yield from stage.algorithm.trust(stage.transcript.channel == "plain")
    says = stage.algorithm.explains_answers()
    for exchange in reader.guessed:
        tried = dict.fromkeys(guess for guess, _ in _all_guesses(reader, exchange))
        what = f"they were tried as {', '.join(tried)}" if tried else "nothing in them has a shape that is attacked"
        name, do = type(stage.algorithm).__name__, "let its `reveals` say it" if says else "give it a method `reveals`"
        yield f'{name} does not say what answers to "{exchange.name}" reveal: {what}; {do}, see docs/how-to/audit.md'
    if reader.beside:
        names = ", ".join(f'"{one.name}"' for one in reader.beside)
        yield (
            f"{type(stage.algorithm).__name__} says nothing of what answers beside the rounds reveal, to {names}: as "
            "far as they can be read and shapes allow, they were tried as gradients, models and inner products, and "
            "looked through for rows"
        )


def _all_guesses(reader: Reader, exchange: Any) -> Iterator[tuple[str, Any]]:
    play = reader.plays(exchange)[0]
    received = [reader.of_client(exchange, play, next(iter(play.uploads))), *reader.of_sum(exchange, play)]
    for one in received:
        if one is not None:
            yield from as_gradients(reader, one)
            yield from as_products(reader, one)


# --- gradients -------------------------------------------------------------------------------------------------------


def as_gradients(reader: Reader, received: Received) -> Iterator[tuple[str, MeanGradient]]:
    """(what it is taken for, what it then tells) of every part of an answer that has the shapes of the model."""
    model = model_at(reader, received)
    if model is None:
        return
    problem, columns = reader.stage.algorithm.problem, received.columns
    own = model._replace(first=model.first[columns])
    numbers = _numbers(leaf for leaf in bare_leaves(received.question) if np.asarray(leaf).dtype.kind == "f")
    steps = dict.fromkeys([one for one in numbers if one > 0] + [1.0])
    parts = problem.split == "columns" and len(received.clients) > 1
    for name, value in _in_shapes(list(leaves(received.answer)), model):
        value = value._replace(first=value.first[columns])
        for scale in _weights(reader, received):
            mean = map_leaves(lambda leaf, scale=scale: leaf / scale, value)
            moved = map_leaves(np.subtract, mean, own)
            slope = map_leaves(np.subtract, mean, penalty_gradient(problem.objective, own))
            ways = [("a gradient", mean)]
            if any(leaf.any() for leaf in bare_leaves(map_leaves(np.subtract, slope, mean))):
                ways.append(("a gradient with that of the penalty", slope))
            for step in steps:
                ways.append(("a change of the model", of_step(problem.objective, own, mean, step)))
                ways.append(("a model", of_step(problem.objective, own, moved, step)))
            for what, gradient in ways:
                yield f"{what} (`{name or 'answer'}`)", MeanGradient(own, gradient, 1, parts=parts)


def model_at(reader: Reader, received: Received) -> Any:
    """The model that was asked about, or else the one that the round began with; None where it is of another form."""
    stage = reader.stage
    scenes = [one for one in stage.scenes if one.now.index == received.round]
    model = stage.algorithm.model(scenes[0].server if scenes else stage.server)
    if not isinstance(model, Parameters) or np.shape(model.first)[:-1] != (stage.algorithm.problem.features,):
        return None
    asked = next(_in_shapes(list(leaves(received.question)), model), None)
    return wide(model if asked is None else asked[1])


def _in_shapes(found: Leaves, model: Parameters) -> Iterator[tuple[str, Any]]:
    """(name, parameters) wherever leaves follow each other in the shapes of a model, or one has that of `first`."""
    like = bare_leaves(model)
    for start, (name, _) in enumerate(found):
        some = [_like(one, other) for (_, one), other in zip(found[start:], like, strict=False)]
        whole = [one.reshape(-1) for one in some if one is not None]
        if len(whole) == len(like):
            yield name, unflat(np.concatenate(whole), wide(model))
        elif some[0] is not None:
            yield name, Parameters(some[0], zeros(wide(model.head)))
    for name, leaf in found:
        if np.shape(leaf) != np.shape(model.first):
            yield from _flat(name, leaf, model)


def _flat(name: str, leaf: Any, model: Parameters) -> Iterator[tuple[str, Any]]:
    """(name, parameters) of a vector of all a model's numbers, in any usual order, with a few more before or behind."""
    values, like = np.asarray(leaf), wide(model)
    size = like.first.size
    total = size + sum(other.size for other in bare_leaves(like.head))
    if values.ndim != 1 or values.dtype.kind != "f" or not total <= len(values) <= total + PADDING:
        return
    for start in range(len(values) - total + 1):
        part = values[start : start + total].astype(np.float64)
        behind = np.roll(part, size)  # the head is first
        for how, ordered in (("", part), (" backwards", part[::-1]), (" from the head on", behind)):
            whole = unflat(ordered, like)
            yield f"{name or 'answer'}{how}", whole
            if like.first.ndim == 2:
                yield (
                    f"{name or 'answer'}{how}, transposed",
                    whole._replace(first=whole.first.reshape(like.first.shape[::-1]).T),
                )


def _like(leaf: Any, like: Any) -> Array | None:
    """`leaf` in the shape of `like`; of several such, one after the other, the first; None where it has another."""
    values, shape = np.asarray(leaf), np.shape(like)
    if values.dtype.kind != "f" or not shape:
        return None
    if values.size == np.prod(shape):
        return values.reshape(shape).astype(np.float64)
    return values[0].astype(np.float64) if values.shape[1:] == shape and len(values) else None


def _weights(reader: Reader, received: Received) -> list[float]:
    """By what an answer may have been multiplied: rows relative to the mean client's, 1 each, numbers in the answer."""
    clients = list(received.clients)
    weights = [float(reader.stage.algorithm.problem.weights[clients].sum()), float(len(clients))]
    weights += _numbers(bare_leaves(received.answer))
    return list(dict.fromkeys(round(one, 9) for one in weights if one > 0 and np.isfinite(one)))


def _numbers(values: Iterable[Any]) -> list[float]:
    """Those that are one number each."""
    return [float(np.ravel(leaf)[0]) for leaf in values if np.size(leaf) == 1]


# --- inner products --------------------------------------------------------------------------------------------------


def as_products(reader: Reader, received: Received) -> Iterator[tuple[str, InnerProducts]]:
    """(what it is taken for, what it then tells) of every part of one client's answer with a number for each row."""
    model = model_at(reader, received)
    if model is None or len(received.clients) > 1:
        return
    answers = [(name, np.asarray(leaf)) for name, leaf in leaves(received.answer)]
    for weight, w in _known_weights(reader, received, model):
        scores = w.shape[1]
        for name, leaf in answers:
            for rows, values in _by_rows(reader, received, leaf, scores):
                what = f"inner products (`{name or 'answer'}`) with {weight}"
                yield what, InnerProducts(rows, w, values)


def _known_weights(reader: Reader, received: Received, model: Parameters) -> Iterator[tuple[str, Array]]:
    """(name, [p_i, h]) of what the server has asked with a number, or h, for each column; or else of the model."""
    features, found = reader.stage.algorithm.problem.features, False
    for name, leaf in leaves(received.question):
        values = np.asarray(leaf, dtype=np.float64) if np.asarray(leaf).dtype.kind == "f" else np.zeros(0)
        if values.ndim and len(values) == features:
            found = True
            yield f"`{name or 'question'}`", values.reshape(features, -1)[received.columns]
    if not found:
        yield "the model", model.first[received.columns]


def _by_rows(reader: Reader, received: Received, leaf: Array, scores: int) -> Iterator[tuple[Array, Array]]:
    """(rows, [b, h]) of every way in which a field may have `scores` numbers for each of some rows."""
    stage, client = reader.stage, received.clients[0]
    entered = received.rows[stage.rows(received.round, received.exchange.name, client)]
    asked = [np.asarray(one) for one in bare_leaves(received.question)]
    numbered = [one for one in asked if one.ndim == 1 and one.dtype.kind in "iu"]
    for rows in (*numbered, received.rows, entered):
        if len(rows) and leaf.size == len(rows) * scores:
            yield rows, leaf.reshape(len(rows), scores)
            return
    samples = stage.algorithm.problem.samples
    if leaf.size == samples * scores:
        yield received.rows, leaf.reshape(samples, scores)[received.rows]

"""Guesses about uploads that the algorithm does not declare: as gradients, model changes, models or inner products.

A guess is right if the attack on it succeeds: the recovered rows are true rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from mpifed.algorithms.revealed import of_step, wide
from mpifed.audit.reader import Reader
from mpifed.core.exchange import Exchange
from mpifed.core.record import Array, bare_leaves, leaves, map_leaves, unflat, zeros
from mpifed.core.reveals import InnerProducts, MeanGradient, Received, Revealed
from mpifed.maths.objectives import Parameters, penalty_gradient

PADDING = 8  # most numbers before or after those of a model in a flat vector
Leaves = list[tuple[str, Array]]


def remarks(reader: Reader) -> Iterator[str]:
    """Trust assumptions of the algorithm's paper, and the guesses that were tried about undeclared uploads."""
    replay = reader.replay
    yield from replay.algorithm.trust(replay.transcript.channel == "plain")
    says = replay.algorithm.explains_answers()
    for exchange in reader.guessed:
        tried = dict.fromkeys(guess for guess, _ in _all_guesses(reader, exchange))
        what = f"they were attacked as {', '.join(tried)}"
        if not tried:
            what = "none of their fields has a shape that is attacked"
        name = type(replay.algorithm).__name__
        do = "let its `reveals` declare it" if says else "give it a method `reveals`"
        yield (
            f'{name} does not declare what uploads in "{exchange.name}" reveal: {what}; {do}, see docs/how-to/audit.md'
        )
    if reader.undeclared_outside:
        names = ", ".join(f'"{exchange.name}"' for exchange in reader.undeclared_outside)
        yield (
            f"{type(replay.algorithm).__name__} does not declare what uploads outside the rounds reveal, in {names}: "
            "as far as they can be read and shapes allow, they were attacked as gradients, models and inner products, "
            "and searched for rows"
        )


def _all_guesses(reader: Reader, exchange: Exchange) -> Iterator[tuple[str, Revealed]]:
    play = reader.plays(exchange)[0]
    received = [reader.of_client(exchange, play, next(iter(play.uploads))), *reader.of_sum(exchange, play)]
    for answer in received:
        if answer is not None:
            yield from as_gradients(reader, answer)
            yield from as_products(reader, answer)


# --- gradients -------------------------------------------------------------------------------------------------------


def as_gradients(reader: Reader, received: Received) -> Iterator[tuple[str, MeanGradient]]:
    """(interpretation, gradient) for every part of an upload that has the shapes of the model."""
    model = model_at(reader, received)
    if model is None:
        return
    problem, columns = reader.replay.algorithm.problem, received.columns
    held = model._replace(first=model.first[columns])
    numbers = _numbers(leaf for leaf in bare_leaves(received.question) if np.asarray(leaf).dtype.kind == "f")
    steps = dict.fromkeys([number for number in numbers if number > 0] + [1.0])
    parts = problem.split == "columns" and len(received.clients) > 1
    for name, value in _in_shapes(list(leaves(received.answer)), model):
        value = value._replace(first=value.first[columns])
        for scale in _weights(reader, received):
            mean = map_leaves(lambda leaf, scale=scale: leaf / scale, value)
            moved = map_leaves(np.subtract, mean, held)
            slope = map_leaves(np.subtract, mean, penalty_gradient(problem.objective, held))
            ways = [("a gradient", mean)]
            if any(leaf.any() for leaf in bare_leaves(map_leaves(np.subtract, slope, mean))):
                ways.append(("a gradient with that of the penalty", slope))
            for step in steps:
                ways.append(("a change of the model", of_step(problem.objective, held, mean, step)))
                ways.append(("a model", of_step(problem.objective, held, moved, step)))
            for what, gradient in ways:
                yield f"{what} (`{name or 'upload'}`)", MeanGradient(held, gradient, 1, parts=parts)


def model_at(reader: Reader, received: Received) -> Parameters | None:
    """The broadcast model, or else that at the start of the round; None if models are not `Parameters` of rows."""
    replay = reader.replay
    round_starts = [round_start for round_start in replay.round_starts if round_start.now.index == received.round]
    model = replay.algorithm.model(round_starts[0].server if round_starts else replay.server)
    if not isinstance(model, Parameters) or np.shape(model.first)[:-1] != (replay.algorithm.problem.features,):
        return None
    broadcast = next(_in_shapes(list(leaves(received.question)), model), None)
    return wide(model if broadcast is None else broadcast[1])


def _in_shapes(fields: Leaves, model: Parameters) -> Iterator[tuple[str, Parameters]]:
    """(name, parameters) for consecutive leaves in the shapes of a model, and for leaves in the shape of `first`."""
    like = bare_leaves(model)
    for start, (name, _) in enumerate(fields):
        matching = [_like(leaf, target) for (_, leaf), target in zip(fields[start:], like, strict=False)]
        whole = [array.reshape(-1) for array in matching if array is not None]
        if len(whole) == len(like):
            yield name, unflat(np.concatenate(whole), wide(model))
        elif matching[0] is not None:
            yield name, Parameters(matching[0], zeros(wide(model.head)))
    for name, leaf in fields:
        if np.shape(leaf) != np.shape(model.first):
            yield from _flat(name, leaf, model)


def _flat(name: str, leaf: Array, model: Parameters) -> Iterator[tuple[str, Parameters]]:
    """(name, parameters) of a flat vector of a model, in any usual order, with at most `PADDING` further numbers."""
    values, like = np.asarray(leaf), wide(model)
    size = like.first.size
    total = size + sum(other.size for other in bare_leaves(like.head))
    if values.ndim != 1 or values.dtype.kind != "f" or not total <= len(values) <= total + PADDING:
        return
    for start in range(len(values) - total + 1):
        part = values[start : start + total].astype(np.float64)
        behind = np.roll(part, size)  # if the head comes first
        for how, ordered in (("", part), (" backwards", part[::-1]), (" from the head on", behind)):
            whole = unflat(ordered, like)
            yield f"{name or 'upload'}{how}", whole
            if like.first.ndim == 2:
                yield (
                    f"{name or 'upload'}{how}, transposed",
                    whole._replace(first=whole.first.reshape(like.first.shape[::-1]).T),
                )


def _like(leaf: Array, like: Array) -> Array | None:
    """`leaf` in the shape of `like`; the first of several stacked along axis 0; None for other shapes."""
    values, shape = np.asarray(leaf), np.shape(like)
    if values.dtype.kind != "f" or not shape:
        return None
    if values.size == np.prod(shape):
        return values.reshape(shape).astype(np.float64)
    return values[0].astype(np.float64) if values.shape[1:] == shape and len(values) else None


def _weights(reader: Reader, received: Received) -> list[float]:
    """Possible weights of an upload: relative numbers of rows, numbers of clients, scalars in the upload."""
    clients = list(received.clients)
    weights = [float(reader.replay.algorithm.problem.weights[clients].sum()), float(len(clients))]
    weights += _numbers(bare_leaves(received.answer))
    return list(dict.fromkeys(round(weight, 9) for weight in weights if weight > 0 and np.isfinite(weight)))


def _numbers(values: Iterable[Array]) -> list[float]:
    """Values of all scalar leaves."""
    return [float(np.ravel(leaf)[0]) for leaf in values if np.size(leaf) == 1]


# --- inner products --------------------------------------------------------------------------------------------------


def as_products(reader: Reader, received: Received) -> Iterator[tuple[str, InnerProducts]]:
    """(interpretation, inner products) for every part of a client's upload with a number per row and score."""
    model = model_at(reader, received)
    if model is None or len(received.clients) > 1:
        return
    answers = [(name, np.asarray(leaf)) for name, leaf in leaves(received.answer)]
    for weight, w in _known_weights(reader, received, model):
        scores = w.shape[1]
        for name, leaf in answers:
            for rows, values in _by_rows(reader, received, leaf, scores):
                what = f"inner products (`{name or 'upload'}`) with {weight}"
                yield what, InnerProducts(rows, w, values)


def _known_weights(reader: Reader, received: Received, model: Parameters) -> Iterator[tuple[str, Array]]:
    """(name, [p_i, h]) of broadcast leaves with a number, or h, per column; without any, of the model."""
    features, matched = reader.replay.algorithm.problem.features, False
    for name, leaf in leaves(received.question):
        values = np.asarray(leaf, dtype=np.float64) if np.asarray(leaf).dtype.kind == "f" else np.zeros(0)
        if values.ndim and len(values) == features:
            matched = True
            yield f"`{name or 'broadcast'}`", values.reshape(features, -1)[received.columns]
    if not matched:
        yield "the model", model.first[received.columns]


def _by_rows(reader: Reader, received: Received, leaf: Array, scores: int) -> Iterator[tuple[Array, Array]]:
    """(rows, [b, h]) for each set of rows of which a leaf may have `scores` numbers per row."""
    replay, client = reader.replay, received.clients[0]
    entered = received.rows[replay.rows(received.round, received.exchange.name, client)]
    arrays = [np.asarray(leaf) for leaf in bare_leaves(received.question)]
    numbered = [array for array in arrays if array.ndim == 1 and array.dtype.kind in "iu"]
    for rows in (*numbered, received.rows, entered):
        if len(rows) and leaf.size == len(rows) * scores:
            yield rows, leaf.reshape(len(rows), scores)
            return
    samples = replay.algorithm.problem.samples
    if leaf.size == samples * scores:
        yield received.rows, leaf.reshape(samples, scores)[received.rows]

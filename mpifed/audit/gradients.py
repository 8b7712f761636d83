"""Attacks on gradients that the server received from single clients, or in their sum, compared with the true rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.attack_result import (
    INVERSION,
    RECONSTRUCTION,
    AttackResult,
    Floats,
    not_applicable,
    pictures,
)
from mpifed.audit.attacks.inversion import invert
from mpifed.audit.attacks.matching import EXACT, Match, match, match_all, recovered
from mpifed.audit.attacks.reconstruction import reconstruct
from mpifed.audit.received import EACH, HIDDEN, SEALED, SUM, Reader
from mpifed.audit.replay import Replay
from mpifed.core.record import Array, bare_leaves
from mpifed.core.reveals import DualSum, MeanGradient, Received
from mpifed.maths.objectives import NeuralNetwork, Parameters

MOST_CLIENTS = 16  # most clients that are attacked individually
LARGEST_BATCH = 10  # most rows of a minibatch that inversion separates
LARGEST = 2**26  # most numbers in the true rows that the result is compared with
EASY_BATCH, STARTS = 6, 2  # up to EASY_BATCH rows, inversion has STARTS restarts of some seconds each


class Target(NamedTuple):
    """A gradient that an attacker has, and the auditor's ground truth."""

    seen: str  # EACH, SUM or SEALED
    received: Received
    mean: MeanGradient  # over `batch` rows
    batch: int
    entered: dict[int, NDArray[np.int64]]  # by client, positions of its rows that entered, or may have; not known

    @property
    def numbers(self) -> int:
        """Numbers in the rows."""
        return self.batch * len(self.received.columns)


def gradient_attacks(reader: Reader) -> Iterator[AttackResult]:
    """Reconstruction and inversion from single clients' uploads, as far as they can be read, and from the sum."""
    targets, replay = list(_targets(reader)), reader.replay
    if _in_parts(reader):
        reason = f"data are split by columns: no client sends the gradient of whole rows{reader.attribution}"
        yield from _neither(reason, EACH)
    elif replay.channel == "encrypted" and {target.seen for target in targets} == {SUM}:
        yield from _neither(HIDDEN, "encrypted uploads")
    if not targets:
        yield from _neither(_why_none(reader))
    elif isinstance(replay.problem.objective, NeuralNetwork):
        yield from _of_network(replay, targets)
    else:
        few = {client: np.arange(min(shard.samples, 50)) for client, shard in replay.shards.items()}
        known = all((replay.features(*some) >= 0).all() for some in few.items())  # as of images: public knowledge
        for seen in (EACH, SEALED, SUM):
            here = [target for target in targets if target.seen == seen]
            small = [target for target in here if target.numbers <= LARGEST]
            if small:
                yield _reconstruction(replay, small, known)
                yield _inversion(replay, small, known)
            elif here:
                why = f"its rows have {here[0].numbers} numbers; rows of at most {LARGEST} are compared with the result"
                yield from _neither(why, seen)


def _targets(reader: Reader) -> Iterator[Target]:
    """Gradients of whole rows, in the first and last occurrence of each exchange."""
    shards = reader.replay.shards
    for exchange in reader.rounds:
        plays = reader.plays(exchange)
        for play in plays[:1] + plays[1:][-1:]:
            for seen, received in reader.received(play, MOST_CLIENTS):
                clients, columns = received.clients, len(received.columns)
                entered = {client: reader.replay.rows(play.round, exchange.name, client) for client in clients}
                for mean in reader.revealed(received):
                    if not isinstance(mean, MeanGradient) or (mean.first and play is not plays[0]):
                        continue
                    if mean.parts:
                        whole = len(clients) > 1 and columns == reader.replay.problem.features
                    else:
                        whole = all(len(shards[client].columns) == columns for client in clients)
                    if whole:
                        each = [len(rows) for rows in entered.values()]
                        rows = each[0] if mean.parts else mean.batch or sum(each)
                        yield Target(seen, received, mean, rows, entered)


def _in_parts(reader: Reader) -> bool:
    """Whether clients send gradients of their own columns only."""
    features, shards = reader.replay.problem.features, reader.replay.shards.values()
    first = next((mean for _, _, mean in reader.of_sums(MeanGradient, reader.rounds)), None)
    whole = all(len(shard.columns) == features for shard in shards)
    return first is not None and first.parts and not whole  # a client with all columns sends no part


def _neither(why: str, seen: str = "") -> Iterator[AttackResult]:
    """The results of reconstruction and inversion where there is no gradient for them: not applicable, and why."""
    yield from (not_applicable(attack, why, seen=seen) for attack in (RECONSTRUCTION, INVERSION))


def _why_none(reader: Reader) -> str:
    """Why there is no gradient to attack, in words."""
    if not any(reader.plays(exchange) for exchange in reader.rounds):
        return "no exchange of a round was recorded completely"
    if any(True for _ in reader.of_sums(DualSum, reader.rounds)):
        return f"clients send sums over their dual variables, and no gradients{reader.attribution}"
    return "no message that can be read contains a gradient or has the shapes of the model"


def _rows(replay: Replay, target: Target, strangers: bool = False) -> Floats:
    """[b, p] the rows that entered; or as many of the same clients that did not."""
    chosen = []
    for client, inside in target.entered.items():
        shard = replay.shards[client]
        if target.mean.parts:  # the clients have the same rows
            numbers = shard.rows[inside]
            others = np.setdiff1d(np.arange(replay.problem.samples), numbers)
            return replay.full_rows(others[: target.batch] if strangers else numbers)
        others = np.setdiff1d(np.arange(shard.samples), inside)
        chosen.append(replay.features(client, others[: max(1, len(inside))] if strangers else inside))
    return np.concatenate(chosen)


def _single(replay: Replay, seen: str, guesses: Iterable[tuple[Target, Array]], count: int, how: str) -> AttackResult:
    """How many guesses, each of one row behind a gradient, are right."""
    pairs, matches = list[tuple[Floats, Floats]](), list[Match]()
    for target, row in guesses:
        rows = _rows(replay, target)
        matches.append(match(row, rows))
        pairs.append((row, rows[matches[-1].at]))
    good = recovered(matches)
    text = f"{good} of {count} rows recovered{_lengths(matches)}{how}"
    return AttackResult(RECONSTRUCTION, "server", seen, True, good > 0, text, good, count, *pictures(pairs))


def _of_network(replay: Replay, attacked: Sequence[Target]) -> Iterator[AttackResult]:
    """The row of a minibatch of one row, from a first layer that sees all features and has biases.

    A unit's gradient is (derivative by its input) x the row, and that of its bias the derivative itself.
    """
    seen, features = attacked[0].seen, replay.problem.features
    yield not_applicable(
        INVERSION, "no attack on minibatches is built in for networks of a library; that proves nothing", seen=seen
    )
    layers = [(target, _first_layer(target.mean.gradient, features)) for target in attacked]
    guesses = [(target, _row_of(*layer)) for target, layer in layers if layer and target.batch == 1]
    if guesses:
        yield _single(replay, seen, guesses, len(guesses), " from the first layer")
    elif any(layer for _, layer in layers):
        yield not_applicable(RECONSTRUCTION, _too_many(attacked), seen=seen)
    else:
        yield not_applicable(
            RECONSTRUCTION, "the network has no layer of all features with biases, and no other attack on networks is "
            "built in; that proves nothing", seen=seen,
        )  # fmt: skip


def _too_many(attacked: Sequence[Target]) -> str:
    return f"a minibatch has {attacked[0].batch} rows; reconstruction needs a single row"


def _first_layer(gradient: Parameters, features: int) -> tuple[Array, Array] | None:
    """The gradients of a matrix [units, features], or its transpose, and of the biases [units] beside it."""
    for both in pairwise(bare_leaves(gradient.head)):
        for w, b in (both, both[::-1]):
            if w.ndim == 2 and b.ndim == 1 and w.shape == (len(b), features):
                return w, b
            if w.ndim == 2 and b.ndim == 1 and w.shape == (features, len(b)):  # as of JAX
                return w.T, b
    return None


def _row_of(weight: Array, bias: Array) -> Array:
    unit = int(np.argmax(np.abs(bias)))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.nan_to_num(weight[unit].astype(np.float64) / float(bias[unit])))


def _reconstruction(replay: Replay, attacked: Sequence[Target], known: bool) -> AttackResult:
    """Reconstruct the row of a minibatch of one row from its gradient."""
    objective, seen = replay.problem.objective, attacked[0].seen
    if seen != SUM and not any(target.batch == 1 for target in attacked):
        return not_applicable(RECONSTRUCTION, _too_many(attacked), seen=seen)
    if seen == SUM:
        first = attacked[0].received.round
        attacked = [target for target in attacked if target.batch <= LARGEST_BATCH or target.received.round == first][
            :1
        ]
    tried = [reconstruct(objective, target.mean.model, target.mean.gradient, nonnegative=known) for target in attacked]
    how = f"; the attacker is sure of {sum(one.claimed for one in tried)}"
    guesses = zip(attacked, (one.row for one in tried), strict=True)
    return _single(replay, seen, guesses, sum(target.batch for target in attacked), how)


def _inversion(replay: Replay, attacked: Sequence[Target], known: bool) -> AttackResult:
    """Reconstruct the rows of a small minibatch, or the sums of classes while a linear model is zero."""
    seen, batch, objective = attacked[0].seen, attacked[0].batch, replay.problem.objective
    within = [
        target
        for target in attacked
        if target.batch > 1 and (target.batch <= LARGEST_BATCH or not np.any(target.mean.model.first))
    ]
    if not within:
        why = f"gradients of {batch} rows; inversion is tried up to {LARGEST_BATCH}"
        why = "minibatches of one row: reconstruction suffices" if batch == 1 else why
        return not_applicable(INVERSION, why, seen=seen)
    matches, chance, pairs, claims = list[Match](), list[Match](), list[tuple[Floats, Floats]](), 0
    tried = [within[0], within[-1]] if seen == EACH and len(within) > 1 else within[:1]
    for target in tried:
        model, gradient = target.mean.model, target.mean.gradient
        starts = STARTS if target.batch <= EASY_BATCH else 0
        end = invert(objective, model, gradient, target.batch, nonnegative=known, starts=starts)
        if len(end.rows):
            rows = _rows(replay, target)
            matched = match_all(end.rows, rows)
            matches += matched
            chance += match_all(end.rows, _strangers(replay, target, rows))
            pairs += [(row, rows[one.at]) for row, one in zip(end.rows, matched, strict=False)]
            claims += len(end.rows) if end.claimed else 0
    good, by_chance, count = recovered(matches), recovered(chance), sum(target.batch for target in tried)
    close, near = (sum(one.verdict == "close" for one in group) for group in (matches, chance))
    text = f"{good} of {count} rows recovered{_lengths(matches)}; the attacker is sure of {claims}"
    text += f"; and {by_chance} of as many rows outside the minibatch" if by_chance else ""
    text += f"; {close} more are recognizable, and {near} of as many rows outside the minibatch" if close else ""
    text += "; their clients are not known" if good and seen == SUM and not attacked[0].mean.parts else ""
    success = good > by_chance + 3 * np.sqrt(by_chance)  # more than matches of other rows explain
    success |= close > near + 3 * np.sqrt(near + 1)  # rows of a class are similar, too
    return AttackResult(INVERSION, "server", seen, True, bool(success), text, good, count, *pictures(pairs))


def _lengths(matches: Sequence[Match]) -> str:
    count = sum(one.verdict == "direction" for one in matches)
    return f", {count} of them up to their length" if count else ""


def _strangers(replay: Replay, target: Target, rows: Floats) -> Floats:
    """As many rows of the same clients that did not enter the gradient, without duplicates of rows that did."""
    strangers = _rows(replay, target, strangers=True)
    if target.mean.parts:
        return strangers
    cosines = _units(strangers) @ _units(rows).T
    return np.asarray(strangers[(np.abs(cosines) < 1 - EXACT**2 / 2).all(axis=1)])


def _units(rows: Floats) -> Floats:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))

"""Attacks on gradients that the server received in a transcript, and comparison of the result with the true rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from mpifed.audit.attack_result import (
    INVERSION,
    RECONSTRUCTION,
    AttackResult,
    Floats,
    beyond_chance,
    not_applicable,
    pictures,
)
from mpifed.audit.attacks.inversion import invert
from mpifed.audit.attacks.matching import EXACT, Match, match, match_all, recovered
from mpifed.audit.attacks.reconstruction import reconstruct
from mpifed.audit.gradient_targets import Target, in_parts, targets
from mpifed.audit.received import EACH, HIDDEN, SEALED, SUM, Reader
from mpifed.audit.replay import Replay
from mpifed.core.record import Array, bare_leaves
from mpifed.core.reveals import DualSum
from mpifed.maths.objectives import NeuralNetwork, Parameters

MOST_CLIENTS = 16  # most clients that are attacked individually
LARGEST_BATCH = 10  # most rows of a minibatch that inversion separates
LARGEST = 2**26  # most numbers in the true rows that the result is compared with
EASY_BATCH, STARTS = 6, 2  # up to EASY_BATCH rows, inversion has STARTS restarts of some seconds each


def gradient_attacks(reader: Reader) -> Iterator[AttackResult]:
    """Reconstruction and inversion from single clients' uploads, as far as they can be read, and from the sum."""
    all_targets = list(targets(reader, MOST_CLIENTS))
    if in_parts(reader):
        reason = f"data are split by columns: no client sends the gradient of whole rows{reader.attribution}"
        yield from _neither(reason, EACH)
    elif all_targets and reader.replay.channel == "encrypted" and {target.seen for target in all_targets} == {SUM}:
        yield from _neither(HIDDEN, "encrypted uploads")
    if not all_targets:
        yield from _neither(_why_none(reader))
        return
    if isinstance(reader.replay.algorithm.problem.objective, NeuralNetwork):
        yield from _of_network(reader.replay, all_targets)
        return
    known = _nonnegative(reader.replay)
    for seen in (EACH, SEALED, SUM):
        here = [target for target in all_targets if target.seen == seen]
        small = [target for target in here if target.numbers <= LARGEST]
        if small:
            yield _reconstruction(reader.replay, small, known)
            yield _inversion(reader.replay, small, known)
        elif here:
            why = f"its rows have {here[0].numbers} numbers; rows of at most {LARGEST} are compared with the result"
            yield from _neither(why, seen)


def _of_network(replay: Replay, attacked: Sequence[Target]) -> Iterator[AttackResult]:
    """The row of a minibatch of one row, from a first layer that sees all features and has biases.

    A unit's gradient is (derivative by its input) x the row, and that of its bias the derivative itself.
    """
    seen, features = attacked[0].seen, replay.algorithm.problem.features
    yield not_applicable(
        INVERSION, "no attack on minibatches is built in for networks of a library; that proves nothing", seen=seen
    )
    layers = [_first_layer(target.gradient, features) for target in attacked]
    if not any(layers):
        yield not_applicable(
            RECONSTRUCTION, "the network has no layer of all features with biases, and no other attack on networks is "
            "built in; that proves nothing", seen=seen,
        )  # fmt: skip
        return
    alone = [(target, layer) for target, layer in zip(attacked, layers, strict=True) if layer and target.batch == 1]
    if not alone:
        why = f"a minibatch has {attacked[0].batch} rows; reconstruction needs a single row"
        yield not_applicable(RECONSTRUCTION, why, seen=seen)
        return
    rows, truth, matches = list[Floats](), list[Floats](), list[Match]()
    for target, (weight, bias) in alone:
        unit = int(np.argmax(np.abs(bias)))
        with np.errstate(divide="ignore", invalid="ignore"):
            row = np.nan_to_num(weight[unit].astype(np.float64) / float(bias[unit]))
        matches.append(match(row, target.rows))
        rows.append(row)
        truth.append(target.rows[matches[-1].at])
    good, shown = recovered(matches), pictures(zip(rows, truth, strict=True))
    text = f"{good} of {len(alone)} rows recovered{_lengths(matches)} from the first layer"
    yield AttackResult(RECONSTRUCTION, "server", seen, True, good > 0, text, good, len(alone), *shown)


def _first_layer(gradient: Parameters, features: int) -> tuple[Array, Array] | None:
    """The gradients of a matrix [units, features], or its transpose, and of the biases [units] beside it."""
    for both in pairwise(bare_leaves(gradient.head)):
        for w, b in (both, both[::-1]):
            if w.ndim == 2 and b.ndim == 1 and w.shape == (len(b), features):
                return w, b
            if w.ndim == 2 and b.ndim == 1 and w.shape == (features, len(b)):  # as of JAX
                return w.T, b
    return None


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


def _nonnegative(replay: Replay) -> bool:
    """Whether features are nonnegative, as those of images; assumed to be public knowledge about the data."""
    return all(
        (replay.features(client, np.arange(min(shard.samples, 50))) >= 0).all()
        for client, shard in replay.shards.items()
    )


def _reconstruction(replay: Replay, attacked: Sequence[Target], known: bool) -> AttackResult:
    """Reconstruct the row of a minibatch of one row from its gradient."""
    objective, seen = replay.algorithm.problem.objective, attacked[0].seen
    if seen != SUM and not any(target.batch == 1 for target in attacked):
        return not_applicable(
            RECONSTRUCTION, f"a minibatch has {attacked[0].batch} rows; reconstruction needs a single row", seen=seen
        )
    if seen == SUM:
        attacked = [
            target for target in attacked if target.batch <= LARGEST_BATCH or target.round == attacked[0].round
        ][:1]
    rows, matches, claims = [], list[Match](), 0
    for target in attacked:
        tried = reconstruct(objective, target.model, target.gradient, nonnegative=known)
        claims += tried.claimed
        rows.append(tried.row)
        matches.append(match(tried.row, target.rows))
    good = recovered(matches)
    text = f"{good} of {_count(attacked)} rows recovered{_lengths(matches)}; the attacker is sure of {claims}"
    truth = [target.rows[matched.at] for target, matched in zip(attacked, matches, strict=True)]
    shown = pictures(zip(rows, truth, strict=True))
    return AttackResult(RECONSTRUCTION, "server", seen, True, good > 0, text, good, _count(attacked), *shown)


def _inversion(replay: Replay, attacked: Sequence[Target], known: bool) -> AttackResult:
    """Reconstruct the rows of a small minibatch, or the sums of classes while a linear model is zero."""
    seen = attacked[0].seen
    within = [
        target
        for target in attacked
        if 1 < target.batch <= LARGEST_BATCH or (target.batch > 1 and not np.any(target.model.first))
    ]
    if not within:
        batch = attacked[0].batch
        why = f"gradients of {batch} rows; inversion is tried up to {LARGEST_BATCH}"
        return not_applicable(
            INVERSION, "minibatches of one row: reconstruction suffices" if batch == 1 else why, seen=seen
        )
    objective, matches, chance = replay.algorithm.problem.objective, list[Match](), list[Match]()
    rows, truth, claims = list[Floats](), list[Floats](), 0
    tried = [within[0], within[-1]] if seen == EACH and len(within) > 1 else within[:1]
    for target in tried:
        starts = STARTS if target.batch <= EASY_BATCH else 0
        end = invert(objective, target.model, target.gradient, target.batch, nonnegative=known, starts=starts)
        claims += len(end.rows) if end.claimed else 0
        if not len(end.rows):
            continue
        matched = match_all(end.rows, target.rows)
        matches += matched
        chance += match_all(end.rows, _strangers(replay, target))
        rows += list(end.rows)[: len(matched)]
        truth += [target.rows[matched_row.at] for matched_row in matched]
    good, by_chance = recovered(matches), recovered(chance)
    close, near = (sum(matched_row.verdict == "close" for matched_row in group) for group in (matches, chance))
    text = f"{good} of {_count(tried)} rows recovered{_lengths(matches)}; the attacker is sure of {claims}"
    text += f"; and {by_chance} of as many rows outside the minibatch" if by_chance else ""
    text += f"; {close} more are recognizable, and {near} of as many rows outside the minibatch" if close else ""
    text += "; their clients are not known" if good and seen == SUM and not attacked[0].parts else ""
    success = beyond_chance(good, by_chance) or close > near + 3 * np.sqrt(near + 1)  # rows of a class are similar, too
    shown = pictures(zip(rows, truth, strict=True))
    return AttackResult(INVERSION, "server", seen, True, bool(success), text, good, _count(tried), *shown)


def _lengths(matches: Sequence[Match]) -> str:
    count = sum(matched_row.verdict == "direction" for matched_row in matches)
    return f", {count} of them up to their length" if count else ""


def _strangers(replay: Replay, target: Target) -> Floats:
    """As many rows of the same clients that did not enter the gradient."""
    if target.parts:
        shard = replay.shards[target.clients[0]]
        inside = shard.rows[replay.rows(target.round, target.exchange, shard.client)]
        return replay.full_rows(np.setdiff1d(np.arange(replay.algorithm.problem.samples), inside)[: target.batch])
    outside = []
    for client in target.clients:
        inside = replay.rows(target.round, target.exchange, client)
        others = np.setdiff1d(np.arange(replay.shards[client].samples), inside)
        outside.append(replay.features(client, others[: max(1, len(inside))]))
    rows = np.concatenate(outside)
    cosines = _units(rows) @ _units(target.rows).T
    # leave out duplicates of rows in the minibatch
    strange: Floats = rows[(np.abs(cosines) < 1 - EXACT**2 / 2).all(axis=1)]
    return strange


def _units(rows: Floats) -> Floats:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))


def _count(attacked: Sequence[Target]) -> int:
    return sum(target.batch for target in attacked)

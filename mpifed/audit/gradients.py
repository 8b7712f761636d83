"""Attacks on gradients that the server received from single clients, or in their sum, compared with the true rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms.reveals import MeanGradient
from mpifed.audit.attack import EXACT, INVERSION, RECONSTRUCTION, SHOWN, AttackResult, Floats, Match, count, match
from mpifed.audit.inversion import rows_behind
from mpifed.audit.networks import rows_behind_network
from mpifed.audit.received import DECLARED, EACH, HIDDEN, SEALED, SUM, Reader
from mpifed.audit.recording import Replay
from mpifed.maths.objectives import NeuralNetwork

MOST_CLIENTS = 16  # most clients that are attacked individually
LARGEST_BATCH = 10  # most rows of a minibatch that inversion separates
LARGEST = 2**26  # most numbers in the true rows that the result is compared with


class Target(NamedTuple):
    """A gradient that an attacker has, and the auditor's ground truth."""

    seen: str  # EACH, SUM or SEALED
    mean: MeanGradient  # over `batch` rows
    batch: int
    entered: dict[int, NDArray[np.int64]]  # by client, positions of its rows that entered, or may have; not known

    @property
    def separable(self) -> bool:
        """Whether inversion is tried: of few rows, or while a linear model is zero, where it gives sums of classes."""
        first = self.mean.model.first
        return self.batch <= LARGEST_BATCH or (np.size(first) > 0 and not np.any(first))


def gradient_attacks(reader: Reader) -> Iterator[AttackResult]:
    """Reconstruction of one row and inversion of few, from single clients' uploads as they can be read, and the sum."""
    replay, targets = reader.replay, list(_targets(reader))
    few = {client: np.arange(min(shard.samples, 50)) for client, shard in replay.shards.items()}
    known = all((replay.features(*some) >= 0).all() for some in few.items())  # as of images: public knowledge
    for seen in (EACH, SEALED, SUM):
        here = [target for target in targets if target.seen == seen]
        ones = [target for target in here if target.batch == 1]
        more = [target for target in here if target.batch > 1 and target.separable]
        more = more[:1] + more[1:][-1:] if seen == EACH else more[:1]  # each takes its time
        if isinstance(replay.problem.objective, NeuralNetwork):
            ones = ones[:1] + ones[1:][-1:]
        for name, chosen in ((RECONSTRUCTION, ones), (INVERSION, more)):
            if chosen:
                yield _attacked(replay, name, chosen, known)
            elif here:
                yield AttackResult(name, seen, f"gradients of {here[0].batch} rows, for which it is not made")
    if all(target.seen == SUM for target in targets):
        why = "no client sends a gradient of whole rows" + DECLARED
        seen, why = ("encrypted uploads", HIDDEN) if reader.ciphertexts else (EACH, why)
        yield from (AttackResult(name, seen, why) for name in (RECONSTRUCTION, INVERSION))


def _targets(reader: Reader) -> Iterator[Target]:
    """Gradients of whole rows, in the first and last occurrence of each exchange."""
    replay = reader.replay
    for exchange in reader.rounds:
        plays = [play for play in replay.plays(exchange.name) if play.uploads]
        for play, last in product(plays[:1] + plays[1:][-1:], (False, True)):
            clients = sorted(play.uploads)[:MOST_CLIENTS]
            uploads = [reader.of_sum(play)] if last else [reader.of_client(play, client) for client in clients]
            for received in filter(None, uploads):
                entered = {client: replay.rows(play.round, exchange.name, client) for client in received.clients}
                each = [len(rows) for rows in entered.values()]
                held = {len(replay.shards[client].columns) for client in received.clients}
                for mean in reader.revealed(received):
                    if not isinstance(mean, MeanGradient) or (mean.first and play is not plays[0]):
                        continue
                    batch = each[0] if mean.parts else mean.batch or sum(each)
                    whole = last and len(each) > 1 if mean.parts else held == {len(received.columns)}
                    if whole and batch * len(received.columns) <= LARGEST:
                        yield Target(SUM if last else reader.seen(exchange), mean, batch, entered)


def _rows(replay: Replay, target: Target, strangers: bool = False) -> Floats:
    """[b, p] the rows that entered; or as many of the same clients that did not."""
    chosen = []
    for client, inside in target.entered.items():
        shard = replay.shards[client]
        at = np.setdiff1d(np.arange(shard.samples), inside)[: len(inside)] if strangers else inside
        if target.mean.parts:  # the clients have the same rows
            return replay.full_rows(shard.rows[at])
        chosen.append(replay.features(client, at))
    return np.concatenate(chosen)


def _attacked(replay: Replay, name: str, targets: Sequence[Target], known: bool) -> AttackResult:
    """How many rows are recovered, against how many of as many rows of the same clients that did not enter."""
    matches, chance, pairs, sure = list[Match](), list[Match](), list[tuple[Floats, Floats]](), 0
    objective, of, seen = replay.problem.objective, sum(target.batch for target in targets), targets[0].seen
    for target in targets:
        if isinstance(objective, NeuralNetwork):
            shape = replay.problem.features, replay.problem.outputs
            end = rows_behind_network(objective, target.mean, target.batch, *shape, known)
        else:
            end = rows_behind(objective, target.mean, target.batch, known)
        if len(end.rows):
            rows, strangers = _rows(replay, target), _rows(replay, target, strangers=True)
            units = [
                some / np.maximum(np.linalg.norm(some, axis=1, keepdims=True), 1e-300) for some in (rows, strangers)
            ]
            others = strangers[np.abs(units[1] @ units[0].T).max(axis=1) < 1 - EXACT**2 / 2]  # no duplicates
            found = match(end.rows, rows)
            matches += found
            chance += match(end.rows, others)
            pairs += [(end.rows[one.of], rows[one.at]) for one in found]
            sure += len(end.rows) * end.sure
    if isinstance(objective, NeuralNetwork) and not pairs:
        return AttackResult(name, seen, "no attack on such a network is built in; that proves nothing")
    good, by_chance = (count(some, "row", "direction") for some in (matches, chance))
    close, near = (count(some, "close") for some in (matches, chance))
    up_to_length = count(matches, "direction")
    text = f"{good} of {of} rows recovered" + (f", {up_to_length} of them up to their length" if up_to_length else "")
    text += f"; the attacker is sure of {sure}"
    text += f"; and {by_chance} of as many rows outside the minibatch" if by_chance else ""
    text += f"; {close} more are recognizable, and {near} of as many rows outside" if close else ""
    text += "; their clients are not known" if good and seen == SUM and not targets[0].mean.parts else ""
    success = good > by_chance + 3 * np.sqrt(by_chance)  # more than matches of other rows explain
    success |= close > near + 3 * np.sqrt(near + 1)  # rows of a class are similar, too
    return AttackResult(name, seen, text, True, bool(success), good, of, tuple(pairs[:SHOWN]))

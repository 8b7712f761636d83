"""Attacks on gradients that the server received from single clients, or in their sum, compared with the true rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms.reveals import MeanGradient
from mpifed.audit.findings import SHOWN, AttackResult, Floats
from mpifed.audit.inversion import rows_behind
from mpifed.audit.networks import rows_behind_network
from mpifed.audit.received import EACH, SEALED, SUM, Reader
from mpifed.audit.recording import Replay
from mpifed.core.record import Array
from mpifed.maths.objectives import NeuralNetwork

MOST_CLIENTS = 16  # most clients that are attacked individually
LARGEST_BATCH = 10  # most rows of a minibatch that inversion separates
LARGEST = 2**26  # most numbers in the true rows that the result is compared with
EXACT = 1e-2  # relative error below which a row counts as recovered
NOISE = 0.1  # largest error of a recognizable row by the range of values in the true rows, as of 20 dB


class Target(NamedTuple):
    """A gradient that an attacker has, and the auditor's ground truth."""

    seen: str  # EACH, SUM or SEALED
    mean: MeanGradient
    batch: int  # over so many rows
    columns: NDArray[np.int64]
    rows: list[Array]  # numbers, among all, of those that entered, or may have; and of as many of the same clients

    @property
    def separable(self) -> bool:
        """Whether inversion is tried: of few rows, or while a linear model is zero, where it gives sums of classes."""
        first = self.mean.model.first
        return self.batch <= LARGEST_BATCH or (np.size(first) > 0 and not np.any(first))


def gradient_attacks(reader: Reader) -> Iterator[AttackResult]:
    """Reconstruction of one row and inversion of few, from single clients' uploads as they can be read, and the sum."""
    replay, targets = reader.replay, list(_targets(reader))
    for seen in (EACH, SEALED, SUM):
        here = [target for target in targets if target.seen == seen]
        ones = [target for target in here if target.batch == 1]
        if isinstance(replay.problem.objective, NeuralNetwork):
            ones = ones[:1] + ones[1:][-1:]
        more = [target for target in here if target.batch > 1 and target.separable]
        more = more[:1] + more[1:][-1:] * (seen == EACH)  # each takes its time
        for name, chosen in (("reconstruction", ones), ("inversion", more)):
            if chosen:
                yield _attacked(replay, name, chosen)
            elif here:
                yield AttackResult(name, seen, f"gradients of {here[0].batch} rows, for which it is not made")
    if all(target.seen == SUM for target in targets):
        nothing = reader.nothing("a gradient of whole rows")
        yield from (AttackResult(name, *nothing) for name in ("reconstruction", "inversion"))


def _targets(reader: Reader) -> Iterator[Target]:
    """Gradients of whole rows, in the first and last occurrence of each exchange."""
    shards = reader.replay.shards
    for exchange in reader.replay.algorithm.exchanges:
        plays = [play for play in reader.replay.plays if play.exchange.name == exchange.name and play.uploads]
        for play in plays[:1] + plays[1:][-1:]:
            total = reader.of_sum(play)
            uploads = [reader.of_client(play, client) for client in sorted(play.uploads)[:MOST_CLIENTS]]
            for received in filter(None, (*uploads, total)):
                clients, columns = received.clients, received.columns
                held = {len(shards[client].columns) for client in clients}
                for mean in reader.revealed(received, MeanGradient):
                    whole = len(clients) > 1 if mean.parts else held == {len(columns)}
                    if not whole or (mean.first and play is not plays[0]):
                        continue
                    entered, strangers = list[Array](), list[Array]()
                    for client in clients:
                        inside = play.rows.get(client, np.zeros(shards[client].samples, dtype=bool))
                        entered.append(shards[client].rows[inside])
                        strangers.append(shards[client].rows[~inside][: inside.sum()])
                    rows = [np.unique(np.concatenate(each)) for each in (entered, strangers)]
                    batch = mean.batch or len(rows[0])
                    if batch * len(columns) <= LARGEST:
                        seen = SUM if received is total else reader.seen(exchange)
                        yield Target(seen, mean, batch, columns, rows)


def _attacked(replay: Replay, name: str, targets: Sequence[Target]) -> AttackResult:
    """How many rows are recovered, against how many of as many rows of the same clients that did not enter."""
    count, chance, pairs = Counter[str](), Counter[str](), list[tuple[Floats, Floats]]()
    objective, of, seen = replay.problem.objective, sum(target.batch for target in targets), targets[0].seen
    few = {client: np.arange(min(shard.samples, 50)) for client, shard in replay.shards.items()}
    nonnegative = all((replay.features(*some) >= 0).all() for some in few.items())  # as of images: public knowledge
    behind = rows_behind_network if isinstance(objective, NeuralNetwork) else rows_behind
    for target in targets:
        rows = behind(replay.problem, target.mean, target.batch, nonnegative)
        if len(rows):
            truth, strangers = (replay.full_rows(at)[:, target.columns] for at in target.rows)
            apart = np.abs(_units(strangers) @ _units(truth).T).max(axis=1) < 1 - EXACT**2 / 2  # no duplicates
            found = match(rows, truth)
            count.update(verdict for _, _, verdict in found)
            chance.update(verdict for _, _, verdict in match(rows, strangers[apart]))
            pairs += [(rows[i], truth[at]) for i, at, _ in found]
    if not pairs and isinstance(objective, NeuralNetwork):
        return AttackResult(name, seen, "no attack on such a network is built in; that proves nothing")
    good, by_chance = (of_each["row"] + of_each["direction"] for of_each in (count, chance))
    text = f"{good} of {of} rows recovered"
    text += f", {count['direction']} of them up to their length" if count["direction"] else ""
    text += f"; and {by_chance} of as many rows outside the minibatch" if by_chance else ""
    close, near = count["close"], chance["close"]
    text += f"; {close} more are recognizable, and {near} of as many rows outside" if close else ""
    success = good > by_chance + 3 * np.sqrt(by_chance)  # more than matches of other rows explain
    success |= close > near + 3 * np.sqrt(near + 1)  # rows of a class are similar, too
    return AttackResult(name, seen, text, True, bool(success), good, of, tuple(pairs[:SHOWN]))


def _units(rows: Array) -> Array:
    units: Array = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    return units


def match(estimates: Array, rows: Array) -> list[tuple[int, int, str]]:
    """Compare `estimates` [f, p] with distinct `rows` [m, p]: the assignment with the smallest errors.

    Among many rows with few features any estimate is near a row by chance: compare with the rows of the minibatch, and
    also with as many that did not take part.

    Returns
    -------
    (number of the estimate, of its row, verdict): "row": recovered; "direction": up to its length and sign; "close":
    recognizable; "none"
    """
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    norms = np.linalg.norm(rows, axis=1)
    errors = cdist(estimates, rows) / np.maximum(norms, 1e-300)
    # [f, m] distances after the best scaling, of either sign
    scaled = np.sqrt(np.maximum(1 - (_units(estimates) @ _units(rows).T) ** 2, 0))
    range_ = np.ptp(rows) if len(rows) else 0.0
    verdicts = np.select(
        [
            (scaled < EXACT) & (errors < EXACT),
            scaled < EXACT,
            (scaled < 0.3) & (scaled * norms <= NOISE * range_ * np.sqrt(rows.shape[1])),
        ],
        ["row", "direction", "close"],
        "none",
    )
    pairs = zip(*linear_sum_assignment(scaled + 1e-6 * np.minimum(errors, 1e3)), strict=True)
    return [(int(i), int(at), str(verdicts[i, at])) for i, at in pairs]

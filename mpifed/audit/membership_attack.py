"""Membership inference on the final model."""

from __future__ import annotations

import numpy as np

from mpifed.audit.attack_result import MEMBERSHIP, AttackResult, Floats, not_applicable
from mpifed.audit.attacks.membership import membership
from mpifed.audit.replay import Replay, dense_rows
from mpifed.core.record import Array, map_leaves
from mpifed.maths.objectives import Parameters

MEMBERS = 2000  # most rows whose losses are compared
LARGEST = 2**26  # most numbers in these rows


def membership_attack(replay: Replay) -> AttackResult:
    """Attack that distinguishes training rows from test rows by the losses of the final model."""
    seen, model = "the model after the last round", replay.algorithm.model(replay.server)
    if replay.test is None:
        return not_applicable(
            MEMBERSHIP, "no test rows to compare with; prepare the data with --test-fraction", "anybody", seen
        )
    members, strangers = _members(replay), replay.test.shards[0]
    count = min(strangers.samples, _most(replay))
    losses = [
        _losses(replay, model, X, y)
        for X, y in (members, (dense_rows(strangers, np.arange(count)), strangers.y[:count]))
    ]
    classes = [members[1], strangers.y[:count]] if replay.algorithm.problem.objective.classifies else [None, None]
    result = membership(
        losses[0], losses[1], member_classes=classes[0], stranger_classes=classes[1], seed=replay.job.seed
    )
    best = max(result.attacks, key=lambda attack: attack.auc_low)
    text = (
        f"by {best.name}: area under the curve {best.auc:.3f} ({best.auc_low:.3f} to {best.auc_high:.3f}; 0.5 is "
        f"chance), {result.members} training rows against {result.strangers} test rows; {result.caveat}"
    )
    return AttackResult(MEMBERSHIP, "anybody", seen, True, bool(result.leak), text)


def _most(replay: Replay) -> int:
    """Number of rows that are compared, fewer if they are wide."""
    return max(1, min(MEMBERS, LARGEST // replay.algorithm.problem.features))


def _members(replay: Replay) -> tuple[Floats, Array]:
    """([m, p] training rows with all columns, [m] labels)."""
    rng, problem = np.random.default_rng(replay.job.seed), replay.algorithm.problem
    shards = [replay.shards[client] for client in sorted(replay.shards)]
    if problem.split == "rows":
        each = max(1, _most(replay) // len(shards))
        chosen = [np.sort(rng.permutation(shard.samples)[:each]) for shard in shards]
        X = [dense_rows(shard, rows) for shard, rows in zip(shards, chosen, strict=True)]
        return np.concatenate(X), np.concatenate([shard.y[rows] for shard, rows in zip(shards, chosen, strict=True)])
    rows = np.sort(rng.permutation(problem.samples)[: _most(replay)])
    y = np.zeros(problem.samples, shards[0].y.dtype)
    for shard in shards:
        y[shard.rows] = shard.y
    return replay.full_rows(rows), y[rows]


def _losses(replay: Replay, model: Parameters, X: Floats, y: Array) -> Floats:
    objective = replay.algorithm.problem.objective
    wide = map_leaves(lambda leaf: np.asarray(leaf, dtype=np.float64), model)
    scores = objective.scores_of(wide, X[None])
    return np.asarray(objective.loss(wide.head, scores, np.asarray(y)[None])[0], dtype=np.float64)

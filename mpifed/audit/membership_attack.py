"""Membership inference on the last model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.attack_result import MEMBERSHIP, AttackResult, Floats, not_applicable
from mpifed.audit.attacks.membership import FEWEST, membership
from mpifed.audit.replay import Replay
from mpifed.core.record import Array, map_leaves
from mpifed.core.round import SETUP
from mpifed.maths.objectives import Parameters

MEMBERS = 2000  # most rows whose losses are compared
LARGEST = 2**26  # most numbers in these rows


def membership_attack(replay: Replay) -> AttackResult:
    """Attack that tells rows that entered from others of the same clients, by the losses of the last model."""
    seen, objective = "the model after the last round", replay.algorithm.problem.objective
    members, strangers = _drawn(replay)
    if min(len(members), len(strangers)) < FEWEST:
        why = f"{len(members)} rows of clients who trained entered, and {len(strangers)} did not; {FEWEST} are needed"
        return not_applicable(MEMBERSHIP, f"{why} of each", "anybody", seen)
    y = np.zeros(replay.algorithm.problem.samples, next(iter(replay.shards.values())).y.dtype)
    for shard in replay.shards.values():
        y[shard.rows] = shard.y
    model = replay.algorithm.model(replay.server)
    losses = [_losses(replay, model, replay.full_rows(rows), y[rows]) for rows in (members, strangers)]
    classes = [y[members], y[strangers]] if objective.classifies else [None, None]
    result = membership(
        losses[0], losses[1], member_classes=classes[0], stranger_classes=classes[1], seed=replay.job.seed
    )
    best = max(result.attacks, key=lambda attack: attack.auc_low)
    text = (
        f"by {best.name}: area under the curve {best.auc:.3f} ({best.auc_low:.3f} to {best.auc_high:.3f}; 0.5 is "
        f"chance), {result.members} rows that entered against {result.strangers} of the same clients that did not"
    )
    return AttackResult(MEMBERSHIP, "anybody", seen, True, bool(result.leak), text)


def _drawn(replay: Replay) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(rows that entered a round, rows of the same clients that did not), a draw of at most `MEMBERS` of each."""
    rng, problem = np.random.default_rng(replay.job.seed), replay.algorithm.problem
    entered, near = np.zeros((2, problem.samples), dtype=bool)
    for play in replay.transcript.plays:
        for client, positions in play.rows.items() if play.round != SETUP else ():
            rows = replay.shards[client].rows
            near[rows] = True
            entered[rows[list(positions)]] = True
    most = max(FEWEST, min(MEMBERS, LARGEST // problem.features))
    members, strangers = (
        np.sort(rng.permutation(np.flatnonzero(chosen))[:most]) for chosen in (entered, near & ~entered)
    )
    return members, strangers


def _losses(replay: Replay, model: Parameters, X: Floats, y: Array) -> Floats:
    objective = replay.algorithm.problem.objective
    wide = map_leaves(lambda leaf: np.asarray(leaf, dtype=np.float64), model)
    scores = objective.scores_of(wide, X[None])
    return np.asarray(objective.loss(wide.head, scores, np.asarray(y)[None])[0], dtype=np.float64)

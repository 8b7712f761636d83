"""Membership inference on the last model, from the losses of rows that entered and of other rows of the same clients.

The loss tells members (S. Yeom, I. Giacomelli, M. Fredrikson, S. Jha, IEEE CSF 2018). Attacks with shadow models are
stronger: failure proves nothing, success proves a leak, for members and strangers have the same distribution.
"""

from __future__ import annotations

import numpy as np

from mpifed.audit.findings import AttackResult
from mpifed.audit.recording import Replay
from mpifed.core.errors import UsageError
from mpifed.core.record import Array, map_leaves
from mpifed.core.round import SETUP

FEWEST = 20  # least members, and least strangers
MEMBERS = 2000  # most rows whose losses are compared
LARGEST = 2**26  # most numbers in these rows
UNLIKELY = 5e-4  # probability of an area that tells nothing


def membership_attack(replay: Replay) -> AttackResult:
    """Attack that tells rows that entered a round from others of the same clients, by the losses of the last model."""
    seen, problem, rng = "the model after the last round", replay.problem, np.random.default_rng(replay.job.seed)
    entered, near = np.zeros((2, problem.samples), dtype=bool)
    for play in replay.plays:
        for client, read in play.rows.items() if play.round != SETUP else ():
            rows = replay.shards[client].rows
            near[rows], entered[rows[read]] = True, True
    most = max(FEWEST, min(MEMBERS, LARGEST // problem.features))
    groups = (rng.permutation(np.flatnonzero(chosen))[:most] for chosen in (entered, near & ~entered))
    members, strangers = map(np.sort, groups)
    if min(len(members), len(strangers)) < FEWEST:
        why = f"{len(members)} rows of clients who trained entered, and {len(strangers)} did not; {FEWEST} are needed"
        return AttackResult("membership", seen, f"{why} of each")
    model, rows = map_leaves(np.float64, replay.algorithm.model(replay.server)), np.concatenate([members, strangers])
    scores = problem.objective.scores_of(model, replay.full_rows(rows)[None])
    losses = np.float64(problem.objective.loss(model.head, scores, replay.labels(rows)[None])[0])
    if not np.isfinite(losses).all():
        raise UsageError("membership: the last model has losses that are not finite")
    auc, chance = area(*np.split(-losses, [len(members)]))
    text = (
        f"by the loss: area under the curve {auc:.3f} (0.5 is chance, which gives as much with probability "
        f"{chance:.2g}), {len(members)} rows that entered against {len(strangers)} of the same clients that did not"
    )
    return AttackResult("membership", seen, text, True, chance < UNLIKELY)


def area(members: Array, strangers: Array) -> tuple[float, float]:
    """(AUC, probability of as large a one where the two are alike), normal and by the variance of E. R. DeLong,
    D. M. DeLong, D. L. Clarke-Pearson (Biometrics 1988), as in the test of Brunner and Munzel."""
    from scipy.stats import brunnermunzel, mannwhitneyu

    auc = mannwhitneyu(members, strangers).statistic / (len(members) * len(strangers))
    with np.errstate(all="ignore"):  # without any overlap
        test = brunnermunzel(members, strangers, alternative="greater", distribution="normal")
    return float(auc), float(test.pvalue)

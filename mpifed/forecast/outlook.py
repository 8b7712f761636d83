"""What a private job will have cost at its end, as `mpifed check JOB.toml` tells it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mpifed.core.algorithm import Algorithm
from mpifed.run.calibration import budget_of, spending_of
from mpifed.run.config import Job
from mpifed.run.ledger import finite, most_within
from mpifed.run.protection import collusion, from_whom, not_private, what_is_protected


def outlook(job: Job, algorithm: Algorithm) -> dict[str, Any] | None:
    """Privacy after all rounds of a job, None where it has none; the algorithm has its noise multiplier."""
    private: Any = algorithm
    privacy, budget = algorithm.problem.privacy, budget_of(job)
    if privacy is None:
        return None
    whole, first = spending_of(job, algorithm, job.rounds), private.released(0)
    ends = None
    if budget is not None and budget.cost(whole) > budget.epsilon:
        ends = most_within(
            lambda rounds: budget.cost(spending_of(job, algorithm, rounds)) <= budget.epsilon, job.rounds
        )
    return {
        "protects": what_is_protected(privacy),
        "from": from_whom(privacy, job.protection()),
        "not_private": not_private(privacy),
        "level": privacy.level,
        "adjacency": privacy.adjacency,
        "model": privacy.trust,
        "delta": privacy.delta,
        "clip": privacy.clip,
        "noise_multiplier": privacy.noise_multiplier,
        "calibrated_for": job.privacy.epsilon if job.privacy else None,
        "accounting": privacy.accounting,
        "accountant": privacy.accountant,
        "distribution": privacy.distribution,
        "noise_on": privacy.noised,
        "sampling": privacy.sampling,
        "mechanisms_per_round": first.mechanisms,
        "rates": [float(first.rate.min()), float(first.rate.max())],
        "rounds_counted": [int(whole.rounds.min()), int(whole.rounds.max())],
        **finite(whole.costs()),
        **collusion(job, whole),
        "budget": budget.epsilon if budget else None,
        "budget_of": budget.key if budget else None,
        "budget_ends_after": ends,
    }


def outlook_lines(found: dict[str, Any], rounds: int) -> Iterator[str]:
    """The same for a person: (label, text) in the columns of the forecast."""
    yield f"\n{'Privacy':12}protects {found['protects']} (level {found['level']}, {found['adjacency']})"
    indent = " " * 12
    yield f"{indent}from {found['from']} (model {found['model']})"
    if found["not_private"]:
        yield f"{indent}NOT PRIVATE: {found['not_private']}"
    yield f"{indent}{_noise(found)}"
    yield f"{indent}{_sampled(found)}"
    yield f"{indent}after {rounds} rounds, at delta = {found['delta']:g} ({found['accountant']}):"
    shown = {name: _shown(found[name]) for name in found if name.startswith("epsilon")}
    if found["epsilon_if_secret"] is not None:
        yield f"{indent}  epsilon: none; were the noise secret, and integers, {shown['epsilon_if_secret']}"
    else:
        yield (
            f"{indent}  epsilon {shown['epsilon']} for the client who spends most, {shown['epsilon_median']} for the "
            f"median, {shown['epsilon_least']} for the least"
        )
        yield f"{indent}  without amplification by sampling {shown['epsilon_unamplified']}"
    if "colluding" in found:
        tell, fewest = found["colluding"]
        yield (
            f"{indent}  if {tell} of a round's {fewest} clients tell the server their noise, "
            f"{shown['epsilon_colluding']}, which the budget does not cover"
        )
    paper = _shown(found["epsilon_paper"], "nothing is stated")
    yield f"{indent}  by the formula of the FedPDM-DP paper, which is no bound: {paper}"
    if found["budget"] is not None:
        ends = found["budget_ends_after"]
        text = "is enough for all rounds" if ends is None else f"ends the run after round {ends} (exit 6)"
        yield f"{indent}{found['budget_of']} = {found['budget']:g} {text}"


def _noise(found: dict[str, Any]) -> str:
    text = f"clip {found['clip']:g}, {found['distribution']} noise on the {found['noise_on']}, noise multiplier "
    text += f"{found['noise_multiplier']:.4g}"
    if found["calibrated_for"] is None:
        return text
    whose = " in the paper's accounting" if found["accounting"] == "paper" else ""
    return f"{text}, computed for epsilon = {found['calibrated_for']:g}{whose}"


def _sampled(found: dict[str, Any]) -> str:
    least, most = found["rates"]
    rates = f"rate {most:.4g}" if least == most else f"rates from {least:.4g} to {most:.4g}"
    count, (few, many) = found["mechanisms_per_round"], found["rounds_counted"]
    times = f"{many}" if few == many else f"{few} to {many}"
    return (
        f"{count} mechanism{'s' * (count > 1)} a round, {rates} ({found['sampling']} sampling); a client counts in "
        f"{times} rounds"
    )


def _shown(epsilon: float | None, absent: str = "infinite") -> str:
    return absent if epsilon is None else f"{epsilon:.4g}"

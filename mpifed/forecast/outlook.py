"""The privacy cost of a job after all its rounds, for `mpifed check JOB.toml`."""

from __future__ import annotations

from collections.abc import Iterator

from mpifed.algorithms.algorithm import Algorithm
from mpifed.core.tables import Table
from mpifed.job.job import Job
from mpifed.privacy.calibration import budget_of, rounds_within, spending_of
from mpifed.privacy.ledger_file import columns_of, others_of
from mpifed.privacy.protection import from_whom, not_private, shares, what_is_protected
from mpifed.privacy.spending import Spending
from mpifed.text import counted


def outlook(job: Job, algorithm: Algorithm) -> Table | None:
    """The privacy cost after all rounds of a job, None if it is not private; `algorithm` has its noise multiplier."""
    privacy, budget = algorithm.problem.privacy, budget_of(job)
    if privacy is None:
        return None
    nothing, released = Spending.of(algorithm), algorithm.released()
    spending = spending_of(job, nothing, 0, job.rounds)
    ends = rounds_within(job, nothing).stop
    return {
        "protects": what_is_protected(privacy),
        "from": from_whom(privacy, job.protection()),
        "not_private": not_private(privacy),
        "level": privacy.level,
        "model": privacy.trust,
        "delta": privacy.delta,
        "clip": privacy.clip,
        "noise_multiplier": privacy.noise_multiplier,
        "calibrated_for": job.privacy.epsilon if job.privacy else None,
        "noise": privacy.noise,
        "noise_on": "gradients" if privacy.on_gradients else "upload",
        "sampling": privacy.sampling,
        "mechanisms_per_round": released.mechanisms,
        "rates": [float(released.rate.min()), float(released.rate.max())],
        "most_sampled": [client := int(released.rate.argmax()), int(algorithm.problem.counts[client])],
        "rounds_counted": [int(spending.rounds.min()), int(spending.rounds.max())],
        **columns_of(spending),
        **others_of(spending, shares(job, algorithm.problem.clients)),
        "budget": budget.epsilon if budget else None,
        "budget_of": budget.key if budget else None,
        "budget_ends_after": ends if ends < job.rounds else None,
    }


def outlook_lines(summary: Table, rounds: int) -> Iterator[str]:
    """The privacy cost as text, in the columns of the forecast."""

    def shown(name: str, absent: str = "infinite") -> str:
        return absent if summary[name] is None else f"{summary[name]:.4g}"

    indent = " " * 12
    yield f"\n{'Privacy':12}protects {summary['protects']} (level {summary['level']})"
    yield f"{indent}from {summary['from']} (model {summary['model']})"
    if summary["not_private"]:
        yield f"{indent}NOT PRIVATE: {summary['not_private']}"
    noise = f"{summary['noise']} noise on the {summary['noise_on']}"
    multiplier = f"noise multiplier {summary['noise_multiplier']:.4g}"
    if summary["calibrated_for"] is not None:
        whose = " in the paper's accounting" if summary["noise"] == "paper" else ""
        multiplier += f", computed for epsilon = {summary['calibrated_for']:g}{whose}"
    yield f"{indent}clip {summary['clip']:g}, {noise}, {multiplier}"
    (least, most), (client, rows), (few, many) = (summary[name] for name in ("rates", "most_sampled", "rounds_counted"))
    rates = f"rate {most:.4g}"
    if least < most:
        rates = f"rates from {least:.4g} to {most:.4g}, that of client {client}, whose {rows} rows decide all noise"
    charged = f"{many}" if few == many else f"{few} to {many}"
    yield (
        f"{indent}{counted(summary['mechanisms_per_round'], 'mechanism')} per round, {rates} ({summary['sampling']} "
        f"sampling); a client is charged for {charged} rounds"
    )
    yield f"{indent}after {rounds} rounds, at delta = {summary['delta']:g}:"
    if summary["epsilon_if_secret"] is not None:
        secret = shown("epsilon_if_secret")
        yield f"{indent}  epsilon: none; it would be {secret} if the noise were secret and made of integers"
    else:
        yield f"{indent}  epsilon {shown('epsilon')} for the client who spends most"
        yield f"{indent}  without amplification by sampling {shown('epsilon_unamplified')}"
    if "colluding" in summary:
        yield f"{indent}  against another client, who knows its own noise, {shown('epsilon_other_client')}"
        colluding, fewest = summary["colluding"]
        yield (
            f"{indent}  if {colluding} of a round's {fewest} clients reveal their noise to the server, "
            f"{shown('epsilon_colluding')}, which the budget does not cover"
        )
    paper = shown("epsilon_paper", "nothing is stated")
    yield f"{indent}  by the formula of the FedPDM-DP paper, which is no bound: {paper}"
    if summary["budget"] is not None:
        ends = summary["budget_ends_after"]
        text = "is enough for all rounds" if ends is None else f"ends the run after round {ends} (exit 70)"
        yield f"{indent}{summary['budget_of']} = {summary['budget']:g} {text}"

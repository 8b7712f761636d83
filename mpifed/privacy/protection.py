"""What a private run protects, and from whom, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mpifed.core.tables import ReadOnlyTable
from mpifed.maths.privacy.settings import Privacy
from mpifed.text import rounded_up

if TYPE_CHECKING:
    from mpifed.job.job import Job

_NEIGHBOURS = {
    "sample": "one record of one client (neighbours: it is exchanged for another)",
    "client": "all records of one client (neighbours: it is left out)",
}
_FROM = {
    "local": "from everybody else, the server too: local noise",
    "distributed": "from who sees sums alone, where clients keep their shares to themselves: distributed noise",
    "central": "from who sees the models alone, where the server is trusted: central noise",
}
SWEPT = (
    "[privacy]: losses and what else is measured over training data are computed without noise, so epsilon does not "
    "cover a choice among points by them; and each point is a release of its own: their epsilons add up"
)
ADVERSARIES = {
    "epsilon": "against those named above",
    "epsilon_if_secret": "against nobody: what it would be, were the noise secret, and integers",
    "epsilon_unamplified": "against who knows which records, or clients, were drawn",
    "epsilon_other_client": "against another client, who knows its own noise",
    "epsilon_colluding": "against a server whom {} of a round's {} clients tell their noise, which no budget covers",
    "epsilon_paper": "by the formula of the FedPDM-DP paper, which is no bound",
}


def what_is_protected(privacy: Privacy) -> str:
    """How two data sets that cannot be distinguished differ, and by whom they cannot be."""
    return f"{_NEIGHBOURS[privacy.level]}, {_FROM[privacy.trust]}"


def shares(job: Job, clients: int) -> int:
    """The fewest clients that share a round's noise which a server sees in the sum alone; 0 where there is none such.

    That is so in the plain channel, where the server sees every upload with its share of the noise alone, and for local
    and central noise, which a single party draws.
    """
    if job.privacy is None or job.privacy.trust != "distributed" or job.channel == "plain":
        return 0
    return min(job.participation.clients_per_round or clients, clients) - job.participation.max_dropouts


def not_private(privacy: Privacy) -> str | None:
    """Why a run with these settings is not private; None where it is."""
    if privacy.noise_multiplier == 0:
        return "noise_multiplier = 0: there is clipping and no noise, and epsilon is infinite"
    if privacy.noise == "test":
        return 'noise = "test" can be computed from the job\'s seed by anybody'
    if privacy.by_paper:
        return 'noise = "paper" can be computed from the job\'s seed by anybody, and fits what the paper states'
    return None


def warnings_of(job: Job, privacy: Privacy | None, infinite: bool = False) -> list[str]:
    """Warnings of what is not private; `infinite`: whether a single round's epsilon is."""
    rows: list[tuple[object, str]] = [
        (
            job.channel == "encrypted" and not job.dedicated,
            "[server] dedicated = false: rank 0 hosts clients, and its process holds the key that opens every client's "
            "upload: nothing is hidden from who reads that process; leave it out, and rank 0 is the server alone",
        )
    ]
    if privacy is not None:
        why_not, leaving = not_private(privacy), job.participation.dropout_rate
        is_budget = privacy.epsilon is not None and not privacy.by_paper
        ends_early = is_budget * (
            "; noise is computed for as many attempts as there are rounds, so with void ones the budget ends the run "
            "before its last round (exit 70), unless [stop] epsilon allows more"
        )
        rows += [
            (why_not, f"[privacy] {why_not}: this run is not private"),
            (
                infinite and not why_not,
                f"[privacy] noise_multiplier = {privacy.noise_multiplier}: so little that no epsilon can be stated at "
                f"delta = {privacy.delta:g}: this run is not private",
            ),
            (
                privacy.trust == "distributed" and job.channel == "plain",
                '[privacy] trust = "distributed": epsilon holds for who sees sums alone; in the plain channel the '
                "server sees each client's upload, with its part of the noise, and is not covered",
            ),
            (
                privacy.public_preparation,
                "[privacy] public_preparation = true: what was computed from rows when the data were prepared "
                "(`fitted` in federation.json), and what weights that a network brings have learned, is taken as known "
                "to all; epsilon does not cover it",
            ),
            (
                leaving,
                f"[participation] dropout_rate = {leaving:g}: each attempt at a round counts in epsilon, "
                f"{_void(privacy, job.channel)}{ends_early}",
            ),
            (
                job.record.evaluate_every and not job.record.released_only,
                "[privacy]: training loss, certificates and what else is measured over training data or the clients' "
                "own test rows are computed without noise, for simulation: epsilon does not cover them; [record] "
                "released_only = true leaves them out",
            ),
        ]
    return [text for applies, text in rows if applies]


def _void(privacy: Privacy, channel: str) -> str:
    """Whether a round whose sum is not opened has released anything, as text."""
    if privacy.trust == "local":
        return "and a void one is a release: each client has sent its upload, with its own noise"
    if privacy.trust == "distributed" and channel == "plain":
        return "and a void one is a release: the server has seen each client's upload"
    return "though nothing of a void one was opened"


def shown(run: ReadOnlyTable, spent: ReadOnlyTable | None) -> Iterator[tuple[str, str]]:
    """(label, text) on the privacy of a run, from run.json and what it has spent; empty without [privacy]."""
    if spent is not None:
        yield "privacy", run.get("protects", "") if run["private"] else "NOT private: see the warning"
        yield from (("epsilon", row) for row in table(run["noise_multiplier"], run["delta"], spent))


def table(noise_multiplier: float, delta: float, spent: ReadOnlyTable) -> Iterator[str]:
    """Epsilons, each with its adversary, as N. Ponomareva et al. ask for: "How to DP-fy ML", JAIR 2023, section 5.3."""
    if noise_multiplier == 0:
        yield "infinite: there is no noise"
        return
    if spent["epsilon"] is None and spent["epsilon_if_secret"] is None:
        yield "infinite: there is too little noise"
    for name, adversary in ADVERSARIES.items():
        if (value := spent.get(name)) is not None:
            yield f"{rounded_up(value):<8.6g} {adversary.format(*spent.get('colluding', ()))}"
    yield f"at delta = {delta:g}, of the client who spent most, by dp-accounting's losses; test rows are public"

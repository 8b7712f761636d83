"""The audit of a job, by a short recorded run."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mpifed.audit.attack_result import AttackResult
from mpifed.audit.conditions import conditions
from mpifed.audit.equations import equation_attacks
from mpifed.audit.exact_checks import exact_checks
from mpifed.audit.findings import check_names, findings
from mpifed.audit.gradients import gradient_attacks
from mpifed.audit.membership import membership_attack
from mpifed.audit.received import Reader
from mpifed.audit.replay import LIMIT_BYTES, replay_job
from mpifed.audit.report import Audit
from mpifed.core.errors import DataError, UsageError
from mpifed.data.store import open_federation
from mpifed.files.run_folder import RUN
from mpifed.job.job import Job, read_table
from mpifed.job.sweep import points
from mpifed.run.identity import check_same_data

PARTIES = ("server", "client:0")
ROUNDS = 12  # recorded for an audit, unless messages are large


def audited(target: Path, changes: tuple[str, ...], rounds: int | None, parties: Sequence[str] = PARTIES) -> Audit:
    """The audit of a job file, of the first point of a sweep, or of the job of a run; in this process."""
    server, client = _parties(parties)
    own = _job(target, changes)
    job = replace(own, aggregation=replace(own.aggregation, arithmetic="exact"))
    check_names(job.audit.accept)
    if (target / RUN).exists() and not changes:
        check_same_data(target, open_federation(job.data.path))
    replay = replay_job(job, rounds or ROUNDS, math.inf if rounds else LIMIT_BYTES)
    count, clients, channel = replay.rounds, replay.problem.clients, replay.channel
    if client is not None and client >= clients:
        raise UsageError(f"--party client:{client}: clients are numbered 0 to {clients - 1}")
    in_clear = replace(job, aggregation=replace(job.aggregation, security="plain"))
    plain = replay if channel == "plain" else replay_job(in_clear, count)
    remarks = [*_remarks(own), *replay.algorithm.trust(channel == "plain")]
    wanted = min(ROUNDS, job.rounds)
    if rounds is None and count < wanted:
        remarks.append(
            f"only {count} of {wanted} rounds were recorded: more fill {LIMIT_BYTES >> 20} MiB; see --rounds"
        )
    selected = [
        condition for condition in conditions(replay, client or 0)
        if (server if condition.party == "server" else client is not None)
    ]  # fmt: skip
    reader = Reader(replay)
    attacks = [result for result in attack_results(reader) if server or result.party != "server"]
    checks = exact_checks(replay, plain)
    return Audit(
        job=job.name, security=channel, rounds=count, clients=clients, messages=replay.transcript.messages,
        nbytes=replay.transcript.nbytes,
        parties=("server",) * server + ((f"client {client}",) if client is not None else ()),
        conditions=selected, attacks=attacks, exact=checks, findings=findings(reader, selected, attacks, checks),
        remarks=tuple(remarks),
    )  # fmt: skip


def attack_results(reader: Reader) -> list[AttackResult]:
    """Attacks by the server on uploads and sums, and by anybody on the released models."""
    return [
        *gradient_attacks(reader), *equation_attacks(reader), membership_attack(reader.replay),
    ]  # fmt: skip


def _remarks(job: Job) -> list[str]:
    texts = []
    if job.aggregation.arithmetic == "exact-blocks":
        texts.append(
            '[aggregation] arithmetic = "exact-blocks": uploads were recorded client by client, as for exact sums'
        )
    if job.privacy is not None:
        texts.append(
            "the papers' condition is evaluated without the job's noise, and is therefore no finding; attacks see "
            "the noise"
        )
    return texts


def _parties(names: Sequence[str]) -> tuple[bool, int | None]:
    """(whether the server is among the parties, which client, or None)."""
    client = None
    for name in names:
        matched = re.fullmatch(r"server|client(?::(\d+))?", name)
        if matched is None:
            raise UsageError(f"--party {name}: expected server, client or client:NUMBER")
        if name != "server":
            client = int(matched[1] or 0)
    return "server" in names, client


def _job(target: Path, changes: tuple[str, ...]) -> Job:
    path = target / "job.toml" if target.is_dir() else target
    if target.is_dir() and not path.exists():
        raise DataError(f"{target}: no job.toml; give a run directory or a job file")
    return points(read_table(path, changes), str(path))[0].job

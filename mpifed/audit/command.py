"""`mpifed audit`: analyse a short recorded run of a job, or the transcript of a finished run."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from mpifed.audit import whole
from mpifed.audit.attempts import attempts
from mpifed.audit.beside import beside
from mpifed.audit.conditions import Condition, conditions
from mpifed.audit.exact import Exact, exact
from mpifed.audit.findings import check_names, findings
from mpifed.audit.plays import filled
from mpifed.audit.reader import Reader
from mpifed.audit.report import Audit, as_json, as_text, write
from mpifed.audit.sealed import sealed
from mpifed.audit.single import single
from mpifed.audit.stage import Stage, rehearse
from mpifed.audit.undeclared import remarks
from mpifed.audit.uniform import examine
from mpifed.core.errors import BrokenProtocol, DataError, LeakFound, UsageError
from mpifed.core.record import leaves
from mpifed.files.model_file import read_model
from mpifed.job.job import Job, read_table
from mpifed.job.sweep import points
from mpifed.maths.objectives import Parameters
from mpifed.run.transcript import Recorded, is_recorded, read, together

PARTIES = ("server", "client:0")
ROUNDS = 12  # recorded for an audit, if as many fit into a transcript


def audit_command(
    target: Path, changes: tuple[str, ...], rounds: int | None, out: Path | None, json_: bool, parties: tuple[str, ...]
) -> None:
    """Audit a job or a run and print the report.

    Raises
    ------
    LeakFound
        when a party learns more than the job declares.
    UsageError, DataError
        when the job or the run cannot be audited.
    """
    import click

    with threadpool_limits(1):
        audit = audited(target, changes, rounds, parties or PARTIES)
    click.echo(json.dumps(as_json(audit), indent=2) if json_ else as_text(audit))
    folder = out or (target / "audit" if target.is_dir() else None)
    if folder is not None:
        missing = write(audit, folder)
        click.echo(f"{'report':30} {folder}/{missing and f' without images: {missing}'}", err=json_)
    if audit.leaks:
        names = ", ".join(finding.name for finding in audit.leaks)
        raise LeakFound(f"{target}: not declared by [audit] accept: {names}")


def audited(target: Path, changes: tuple[str, ...], rounds: int | None, parties: Sequence[str] = PARTIES) -> Audit:
    """The audit of a job file, of the first point of a sweep, or of a run directory; in this process."""
    server, client = _parties(parties)
    job, run_dir = _job(target, changes)
    check_names(job.audit.accept)
    recorded, source = None, "recorded for this audit"
    if run_dir is not None and is_recorded(run_dir) and not changes and rounds is None:
        recorded, source = read(run_dir), f"of {run_dir}"
    count = recorded.rounds if recorded else rounds or ROUNDS
    stage = rehearse(job, count, fit=rounds is None and recorded is None, between=recorded is not None)
    count = len(stage.scenes)
    clients = stage.algorithm.problem.clients
    if client is not None and client >= clients:
        raise UsageError(f"--party client:{client}: clients are numbered 0 to {clients - 1}")
    same_run = recorded is None
    if recorded is None:
        recorded = together([stage.transcript])
    else:
        whole.check(recorded, stage)
        _check_same_run(recorded, stage)
        recorded = recorded._replace(rounds=count)
        stage.replayed = job.privacy is None or job.privacy.noise != "secure"
    plain = stage if stage.transcript.channel == "plain" else rehearse(_plain(job), count, between=not same_run)
    classified = beside(stage, recorded.messages)
    try:
        exact_checks = exact(stage, classified, plain, same_run)
    except BrokenProtocol as error:
        if same_run:
            raise
        raise DataError(f"the transcript {source} is damaged: {error}; record the run again") from error
    recorded = recorded._replace(messages=classified.sound)  # `exact` has reported the others
    audit = _audit(job, stage, plain, recorded, source, _model(stage, run_dir), server, client, exact_checks)
    if same_run and rounds is None and count < min(ROUNDS, job.rounds):
        fewer = f"only {count} of {ROUNDS} rounds were recorded: more do not fit into a transcript; see --rounds"
        audit = audit._replace(remarks=(*audit.remarks, fewer))
    return audit


def _audit(
    job: Job, stage: Stage, plain: Stage, recorded: Recorded, source: str, model: Parameters, server: bool,
    client: int | None, exact_checks: Exact,
) -> Audit:  # fmt: skip
    messages = recorded.messages
    uploads = sealed(stage, messages)
    control = examine(sealed(plain, tuple(plain.transcript.messages)).samples)
    uniform = control if plain is stage else examine(uploads.samples)
    selected = [condition for condition in conditions(stage, client or 0) if _received_by(condition, server, client)]
    reader = Reader(stage, messages)
    attacks = [attempt for attempt in attempts(reader, model) if server or attempt.party != "server"]
    return Audit(
        job=job.name, security=stage.transcript.channel, source=source, rounds=recorded.rounds,
        clients=stage.algorithm.problem.clients, messages=len(messages),
        nbytes=sum(message.data.nbytes for message in messages), left_out=recorded.left_out,
        left_out_bytes=recorded.left_out_bytes,
        parties=("server",) * server + ((f"client {client}",) if client is not None else ()),
        conditions=selected, attempts=attacks, uniform=uniform, clear=uploads.clear, control=control,
        exact=exact_checks, longest=uploads.longest,
        findings=findings(stage, single(stage, messages, plain), selected, attacks, uniform, exact_checks),
        remarks=(*_remarks(job), *remarks(reader)),
    )  # fmt: skip


def _remarks(job: Job) -> list[str]:
    texts = []
    if job.aggregation.arithmetic == "float":
        texts.append(
            '[aggregation] arithmetic = "float": uploads were recorded in the fixed-point format of exact sums'
        )
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


def _received_by(condition: Condition, server: bool, client: int | None) -> bool:
    return server if condition.party == "server" else client is not None


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


def _job(target: Path, changes: tuple[str, ...]) -> tuple[Job, Path | None]:
    """(the job with exact sums, the run directory, or None for a job file)."""
    path = target / "job.toml" if target.is_dir() else target
    if target.is_dir() and not path.exists():
        raise DataError(f"{target}: no job.toml; give a run directory or a job file")
    job = points(read_table(path, changes), str(path))[0].job
    job = job.model_copy(update={"aggregation": job.aggregation.model_copy(update={"arithmetic": "exact"})})
    return job, target if target.is_dir() else None


def _plain(job: Job) -> Job:
    return job.model_copy(update={"aggregation": job.aggregation.model_copy(update={"security": "plain"})})


def _check_same_run(recorded: Recorded, stage: Stage) -> None:
    """Check that a transcript is of the run that the auditor has replayed, unless draws of the run were secret."""
    if stage.job.privacy is not None:
        return
    broadcasts = [message for message in stage.transcript.messages if message.kind == "question" and message.round == 0]
    for broadcast in broadcasts:
        theirs = [
            message for message in recorded.messages
            if (message.kind, message.round) == ("question", 0)
            and (message.exchange, message.what) == (broadcast.exchange, broadcast.what)
        ]  # fmt: skip
        if theirs and not np.array_equal(theirs[0].data, broadcast.data):
            raise DataError(
                f"the transcript is of another run: the broadcast {broadcast.exchange}.{broadcast.what} of round 0 "
                "differs from the job's; record the run again"
            )


def _model(stage: Stage, run_dir: Path | None) -> Parameters:
    """The final model of the run, or that after the last recorded round."""
    last: Parameters = stage.algorithm.model(stage.server)
    if run_dir is None or not (run_dir / "model.h5").exists():
        return last
    values: dict[str, Any] = read_model(run_dir / "model.h5")
    names = {name for name, _ in leaves(last)}
    if set(values) != names:
        raise DataError(f"{run_dir}/model.h5: holds {', '.join(values)}, expected {', '.join(sorted(names))}")
    if not all(np.isfinite(array).all() for array in values.values()):
        raise DataError(f"{run_dir}/model.h5: has parameters that are not finite; an audit needs a finite model")
    model = filled(last, values)
    return model

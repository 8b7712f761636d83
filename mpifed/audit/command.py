"""`mpifed audit`: a short recorded run of a job, or the transcript of a run, taken apart."""

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
from mpifed.maths.objectives import Parameters
from mpifed.run.config import Job, read_table
from mpifed.run.history import read_model
from mpifed.run.sweep import points
from mpifed.run.transcript import Recorded, is_recorded, read, together

PARTIES = ("server", "client:0")
ROUNDS = 12  # that are recorded for an audit, where as many fit


def audit_command(
    what: Path, changes: tuple[str, ...], rounds: int | None, out: Path | None, json_: bool, parties: tuple[str, ...]
) -> None:
    """Audit a job or run, and print the report.

    Raises
    ------
    LeakFound
        when a party learns more than the job declares.
    UsageError, DataError
        when it cannot be run.
    """
    import click

    with threadpool_limits(1):
        audit = audited(what, changes, rounds, parties or PARTIES)
    click.echo(json.dumps(as_json(audit), indent=2) if json_ else as_text(audit))
    folder = out or (what / "audit" if what.is_dir() else None)
    if folder is not None:
        missing = write(audit, folder)
        click.echo(f"{'report':30} {folder}/{missing and f' without pictures: {missing}'}", err=json_)
    if audit.leaks:
        names = ", ".join(one.name for one in audit.leaks)
        raise LeakFound(f"{what}: not declared by [audit] accept: {names}")


def audited(what: Path, changes: tuple[str, ...], rounds: int | None, parties: Sequence[str] = PARTIES) -> Audit:
    """The audit of a job file, of a sweep its first point, or of a run's folder; in this process."""
    server, client = _parties(parties)
    job, run_dir = _job(what, changes)
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
    own = recorded is None
    if recorded is None:
        recorded = together([stage.transcript])
    else:
        whole.check(recorded, stage)
        _same(recorded, stage)
        recorded = recorded._replace(rounds=count)
        stage.replayed = job.privacy is None or job.privacy.noise != "secure"
    plain = stage if stage.transcript.channel == "plain" else rehearse(_plain(job), count, between=not own)
    rest = beside(stage, recorded.messages)
    try:
        numbers = exact(stage, rest, plain, own)
    except BrokenProtocol as error:
        if own:
            raise
        raise DataError(f"the transcript {source} is damaged: {error}; record the run again") from error
    recorded = recorded._replace(messages=rest.sound)  # what is not was found by `exact`
    audit = _audit(job, stage, plain, recorded, source, _model(stage, run_dir), server, client, numbers)
    if own and rounds is None and count < min(ROUNDS, job.rounds):
        fewer = f"{count} rounds are recorded rather than {ROUNDS}: more do not fit into a transcript; see --rounds"
        audit = audit._replace(remarks=(*audit.remarks, fewer))
    return audit


def _audit(
    job: Job, stage: Stage, plain: Stage, recorded: Recorded, source: str, model: Parameters, server: bool,
    client: int | None, numbers: Exact,
) -> Audit:  # fmt: skip
    messages = recorded.messages
    found = sealed(stage, messages)
    control = examine(sealed(plain, tuple(plain.transcript.messages)).samples)
    uniform = control if plain is stage else examine(found.samples)
    heard = [one for one in conditions(stage, client or 0) if _heard(one, server, client)]
    reader = Reader(stage, messages)
    tried = [one for one in attempts(reader, model) if server or one.party != "server"]
    return Audit(
        job=job.name, channel=stage.transcript.channel, source=source, rounds=recorded.rounds,
        clients=stage.algorithm.problem.clients, messages=len(messages),
        nbytes=sum(one.data.nbytes for one in messages), left_out=recorded.left_out,
        left_out_bytes=recorded.left_out_bytes,
        parties=("server",) * server + ((f"client {client}",) if client is not None else ()),
        conditions=heard, attempts=tried, uniform=uniform, clear=found.clear, control=control,
        exact=numbers, longest=found.longest,
        findings=findings(stage, single(stage, messages, plain), heard, tried, uniform, numbers),
        remarks=(*_remarks(job), *remarks(reader)),
    )  # fmt: skip


def _remarks(job: Job) -> list[str]:
    found = []
    if job.aggregation.arithmetic == "float":
        found.append("the job adds in floats; answers were recorded on the grids of exact sums")
    if job.aggregation.arithmetic == "exact-blocks":
        found.append("the job rounds sums of blocks; answers were recorded client by client, as for exact sums")
    if job.privacy is not None:
        found.append(
            "the papers' condition is that of answers without the job's noise, and so no finding; the attacks see noise"
        )
    return found


def _heard(one: Condition, server: bool, client: int | None) -> bool:
    return server if one.party == "server" else client is not None


def _parties(names: Sequence[str]) -> tuple[bool, int | None]:
    """Whether the server is one of them, and which client."""
    client = None
    for name in names:
        found = re.fullmatch(r"server|client(?::(\d+))?", name)
        if found is None:
            raise UsageError(f"--party {name}: expected server, client or client:NUMBER")
        if name != "server":
            client = int(found[1] or 0)
    return "server" in names, client


def _job(what: Path, changes: tuple[str, ...]) -> tuple[Job, Path | None]:
    """The job, with exact sums, and the folder of the run if it is one."""
    path = what / "job.toml" if what.is_dir() else what
    if what.is_dir() and not path.exists():
        raise DataError(f"{what}: no job.toml; give the folder of a run, or a job file")
    job = points(read_table(path, changes), str(path))[0].job
    job = job.model_copy(update={"aggregation": job.aggregation.model_copy(update={"arithmetic": "exact"})})
    return job, what if what.is_dir() else None


def _plain(job: Job) -> Job:
    return job.model_copy(update={"aggregation": job.aggregation.model_copy(update={"security": "plain"})})


def _same(recorded: Recorded, stage: Stage) -> None:
    """Whether a transcript is of the run that the auditor has played again, where nothing secret was drawn."""
    if stage.job.privacy is not None:
        return
    mine = [one for one in stage.transcript.messages if one.kind == "question" and one.round == 0]
    for one in mine:
        same = [
            m for m in recorded.messages
            if (m.kind, m.round, m.exchange, m.what) == ("question", 0, one.exchange, one.what)
        ]  # fmt: skip
        if same and not np.array_equal(same[0].data, one.data):
            raise DataError(
                f"the transcript is of another run: {one.exchange}.{one.what} of round 0 differs from what the job "
                "asks; record the run again"
            )


def _model(stage: Stage, run_dir: Path | None) -> Parameters:
    """The final model: that of the run, or of the last recorded round."""
    last: Parameters = stage.algorithm.model(stage.server)
    if run_dir is None or not (run_dir / "model.h5").exists():
        return last
    found: dict[str, Any] = read_model(run_dir / "model.h5")
    names = {name for name, _ in leaves(last)}
    if set(found) != names:
        raise DataError(f"{run_dir}/model.h5: holds {', '.join(found)}, expected {', '.join(sorted(names))}")
    if not all(np.isfinite(one).all() for one in found.values()):
        raise DataError(f"{run_dir}/model.h5: holds numbers that are not finite; an audit needs a model")
    model: Parameters = filled(last, found)
    return model

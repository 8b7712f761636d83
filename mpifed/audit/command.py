"""The audit of a job, by a short recorded run, or of a finished run, by its transcript."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mpifed.audit.attack_result import AttackResult
from mpifed.audit.conditions import Condition, conditions
from mpifed.audit.exact_checks import ExactChecks, exact_checks
from mpifed.audit.findings import check_names, findings
from mpifed.audit.gradient_attacks import gradient_attacks, undeclared_gradient_attacks
from mpifed.audit.linear_attacks import linear_attacks, undeclared_product_attacks
from mpifed.audit.membership_attack import membership_attack
from mpifed.audit.noise_attack import noise_attack
from mpifed.audit.outside_uploads import classify
from mpifed.audit.reader import Reader
from mpifed.audit.replay import Replay, replay_job
from mpifed.audit.report import Audit
from mpifed.audit.sealed import sealed
from mpifed.audit.sent_rows import sent_rows
from mpifed.audit.single_client import single_client_fields
from mpifed.audit.transcript_check import check_transcript
from mpifed.audit.undeclared_uploads import remarks
from mpifed.audit.uniformity import examine
from mpifed.core.errors import BrokenProtocol, DataError, UsageError
from mpifed.core.record import map_leaves
from mpifed.files.model_file import model_arrays, read_model
from mpifed.files.run_folder import RUN
from mpifed.job.job import Job, read_table
from mpifed.job.sweep import points
from mpifed.maths.objectives import Parameters
from mpifed.run.identity import check_same_data
from mpifed.run.transcript import Recorded, is_recorded, read, together
from mpifed.shards.store import open_federation

PARTIES = ("server", "client:0")
ROUNDS = 12  # recorded for an audit, if as many fit into a transcript


def audited(target: Path, changes: tuple[str, ...], rounds: int | None, parties: Sequence[str] = PARTIES) -> Audit:
    """The audit of a job file, of the first point of a sweep, or of a run directory; in this process."""
    server, client = _parties(parties)
    own, run_dir = _job(target, changes)
    job = own.model_copy(update={"aggregation": own.aggregation.model_copy(update={"arithmetic": "exact"})})
    check_names(job.audit.accept)
    if run_dir is not None and (run_dir / RUN).exists() and not changes:
        check_same_data(run_dir, open_federation(job.data.path))
    recorded, source = None, "recorded for this audit"
    if run_dir is not None and is_recorded(run_dir) and not changes and rounds is None:
        recorded, source = read(run_dir), f"of {run_dir}"
    count = recorded.rounds if recorded else rounds or ROUNDS
    replay = replay_job(job, count, fit=rounds is None and recorded is None, between=recorded is not None)
    count = len(replay.round_starts)
    clients = replay.algorithm.problem.clients
    if client is not None and client >= clients:
        raise UsageError(f"--party client:{client}: clients are numbered 0 to {clients - 1}")
    same_run = recorded is None
    if recorded is None:
        recorded = together([replay.transcript])
    else:
        check_transcript(recorded, replay)
        _check_same_run(recorded, replay)
        recorded = recorded._replace(rounds=count)
        replay.replayed = job.privacy is None or job.privacy.noise != "secure"
    plain = replay if replay.transcript.channel == "plain" else replay_job(_plain(job), count, between=not same_run)
    classified = classify(replay, recorded.messages)
    try:
        checks = exact_checks(replay, classified, plain, same_run)
    except BrokenProtocol as error:
        if same_run:
            raise
        raise DataError(f"the transcript {source} is damaged: {error}; record the run again") from error
    recorded = recorded._replace(messages=classified.sound)  # `exact` has reported the others
    audit = _audit(job, replay, plain, recorded, source, _model(replay, run_dir), server, client, checks)
    audit = audit._replace(remarks=(*_remarks(own), *audit.remarks))
    if same_run and rounds is None and count < min(ROUNDS, job.rounds):
        fewer = f"only {count} of {ROUNDS} rounds were recorded: more do not fit into a transcript; see --rounds"
        audit = audit._replace(remarks=(*audit.remarks, fewer))
    return audit


def _audit(
    job: Job, replay: Replay, plain: Replay, recorded: Recorded, source: str, model: Parameters, server: bool,
    client: int | None, checks: ExactChecks,
) -> Audit:  # fmt: skip
    messages = recorded.messages
    uploads = sealed(replay, messages)
    control = examine(sealed(plain, tuple(plain.transcript.messages)).samples)
    uniform = control if plain is replay else examine(uploads.samples)
    selected = [condition for condition in conditions(replay, client or 0) if _received_by(condition, server, client)]
    reader = Reader(replay, messages)
    attacks = [result for result in attack_results(reader, model) if server or result.party != "server"]
    return Audit(
        job=job.name, security=replay.transcript.channel, source=source, rounds=recorded.rounds,
        clients=replay.algorithm.problem.clients, messages=len(messages),
        nbytes=sum(message.data.nbytes for message in messages), left_out=recorded.left_out,
        left_out_bytes=recorded.left_out_bytes,
        parties=("server",) * server + ((f"client {client}",) if client is not None else ()),
        conditions=selected, attacks=attacks, uniform=uniform, clear=uploads.clear, control=control,
        exact=checks, longest=uploads.longest,
        findings=findings(replay, single_client_fields(replay, messages, plain), selected, attacks, uniform, checks),
        remarks=tuple(remarks(reader)),
    )  # fmt: skip


def attack_results(reader: Reader, model: Parameters) -> list[AttackResult]:
    """Attacks by the server on uploads and sums, and by anybody on the released models."""
    declared = [*gradient_attacks(reader), *linear_attacks(reader)]
    # declarations by `reveals` may be wrong or incomplete: where they lead to no success, guesses are tried as well
    explained = {name for result in declared if result.success for name in result.exchanges}
    guessed = [*undeclared_gradient_attacks(reader, explained), *undeclared_product_attacks(reader, explained)]
    explained |= {name for result in guessed for name in result.exchanges}
    return [
        *declared, *guessed, *sent_rows(reader, explained), *noise_attack(reader),
        membership_attack(reader.replay, model),
    ]  # fmt: skip


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
    """(the job, the run directory, or None for a job file)."""
    path = target / "job.toml" if target.is_dir() else target
    if target.is_dir() and not path.exists():
        raise DataError(f"{target}: no job.toml; give a run directory or a job file")
    return points(read_table(path, changes), str(path))[0].job, target if target.is_dir() else None


def _plain(job: Job) -> Job:
    return job.model_copy(update={"aggregation": job.aggregation.model_copy(update={"security": "plain"})})


def _check_same_run(recorded: Recorded, replay: Replay) -> None:
    """Check that a transcript is of the run that the auditor has replayed, unless draws of the run were secret."""
    if replay.job.privacy is not None:
        return
    broadcasts = [
        message for message in replay.transcript.messages if message.kind == "question" and message.round == 0
    ]
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


def _model(replay: Replay, run_dir: Path | None) -> Parameters:
    """The final model of the run, or that after the last recorded round."""
    last: Parameters = replay.algorithm.model(replay.server)
    if run_dir is None or not (run_dir / "model.h5").exists():
        return last
    values = read_model(run_dir / "model.h5")
    names = list(model_arrays(last))
    if set(values) != set(names):
        raise DataError(f"{run_dir}/model.h5: holds {', '.join(values)}, expected {', '.join(sorted(names))}")
    if not all(np.isfinite(array).all() for array in values.values()):
        raise DataError(f"{run_dir}/model.h5: has parameters that are not finite; an audit needs a finite model")
    ordered = iter([values[name] for name in names])
    return map_leaves(lambda _: next(ordered), last)

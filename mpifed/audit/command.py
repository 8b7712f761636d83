"""The audit of a job, by a short recorded run, and its report: as text, as JSON, as a folder with recovered rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isqrt
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np

from mpifed.audit.attack import AttackResult
from mpifed.audit.conditions import NOTE, Condition, conditions
from mpifed.audit.equations import equation_attacks
from mpifed.audit.exact_checks import ExactChecks, exact_checks
from mpifed.audit.findings import NAMES, Finding, check_names, findings
from mpifed.audit.gradients import MOST_CLIENTS, gradient_attacks
from mpifed.audit.membership import membership_attack
from mpifed.audit.received import EACH, SEALED, SUM, Reader
from mpifed.audit.recording import LIMIT_BYTES, replay_job
from mpifed.core.errors import DataError, LeakFound, UsageError
from mpifed.core.tables import Table
from mpifed.data.store import open_federation
from mpifed.files.json_file import write_json
from mpifed.files.run_folder import RUN
from mpifed.files.write import replace_text, replaced
from mpifed.job.job import Job, read_table
from mpifed.job.sweep import points
from mpifed.privacy.disclosure import mark
from mpifed.results.text import human_bytes, line_of
from mpifed.run.identity import check_same_data
from mpifed.text import counted

PARTIES = ("server", "client:0")
ROUNDS = 12  # recorded for an audit, unless messages are large
_KINDS = {EACH: "-each", SUM: "-sum", SEALED: "-sealed"}


class Audit(NamedTuple):
    """All results of an audit."""

    job: str
    security: str  # of the aggregation: plain, masked or encrypted
    rounds: int
    nbytes: int  # of what was recorded
    parties: Sequence[str]
    conditions: list[Condition]
    attacks: list[AttackResult]
    exact: ExactChecks
    findings: list[Finding]
    remarks: list[str]

    @property
    def leaks(self) -> list[Finding]:
        """Findings that the job does not declare."""
        return [finding for finding in self.findings if not finding.accepted]


def audited(target: Path, changes: tuple[str, ...], rounds: int | None, parties: Sequence[str] = PARTIES) -> Audit:
    """The audit of a job file, of the first point of a sweep, or of the job of a run; in this process."""
    path = target / "job.toml" if target.is_dir() else target
    if target.is_dir() and not path.exists():
        raise DataError(f"{target}: no job.toml; give a run directory or a job file")
    own = points(read_table(path, changes), str(path))[0].job
    check_names(own.audit.accept)
    if (target / RUN).exists() and not changes:
        check_same_data(target, open_federation(own.data.path))
    job = replace(own, aggregation=replace(own.aggregation, arithmetic="exact"))
    replay = replay_job(job, rounds or ROUNDS, float("inf") if rounds else LIMIT_BYTES)
    server, client = _parties(parties, replay.problem.clients)
    plain = replay
    if replay.channel != "plain":
        plain = replay_job(
            replace(job, aggregation=replace(job.aggregation, security="plain", min_clients=job.min_clients)),
            replay.rounds,
        )
    counts = [
        one for one in conditions(replay, client or 0) if (server if one.party == "server" else client is not None)
    ]
    reader, attacks = Reader(replay), [membership_attack(replay)]  # by anybody, on the released model
    if server:
        attacks = [*gradient_attacks(reader), *equation_attacks(reader), *attacks]
    exact, parties = exact_checks(replay, plain), ["server"] * server + [f"client {client}"] * (client is not None)
    return Audit(
        own.name, replay.channel, replay.rounds, replay.transcript.nbytes, parties,
        counts, attacks, exact, findings(replay, counts, attacks, exact),
        [*_remarks(own, rounds, replay.rounds), *replay.algorithm.trust(replay.channel == "plain")],
    )  # fmt: skip


def _remarks(job: Job, asked: int | None, recorded: int) -> Iterator[str]:
    if job.aggregation.arithmetic != "exact":
        yield "[aggregation] arithmetic: uploads were recorded client by client, as for exact sums"
    if job.privacy is not None:
        yield "the papers' condition is evaluated without the job's noise, and is no finding; attacks see the noise"
    if asked is None and recorded < min(ROUNDS, job.rounds):
        yield f"only {counted(recorded, 'round')} recorded: more fill {LIMIT_BYTES >> 20} MiB; see --rounds"


def _parties(names: Sequence[str], clients: int) -> tuple[bool, int | None]:
    """(whether the server is among the parties, which client, or None)."""
    client = None
    for name in names:
        matched = re.fullmatch(r"server|client(?::(\d+))?", name)
        if matched is None or int(matched[1] or 0) >= clients:
            raise UsageError(f"--party {name}: expected server, client or client:NUMBER, from 0 to {clients - 1}")
        client = client if name == "server" else int(matched[1] or 0)
    return "server" in names, client


# --- the report ------------------------------------------------------------------------------------------------------


def as_json(audit: Audit) -> Table:
    """The report, without recovered rows."""
    attacks = [result._asdict() for result in audit.attacks]
    return {
        "job": audit.job,
        "security": audit.security,
        "recorded": {"rounds": audit.rounds, "bytes": audit.nbytes},
        "parties": audit.parties,
        "conditions": [{**one._asdict(), "determined": one.determined} for one in audit.conditions],
        "attacks": [{key: value for key, value in result.items() if key != "pairs"} for result in attacks],
        "exact": audit.exact._asdict(),
        "findings": [finding._asdict() for finding in audit.findings],
        "remarks": audit.remarks,
        "exit": LeakFound.exit_code if audit.leaks else 0,
    }  # fmt: skip


def as_text(audit: Audit) -> str:
    """What `mpifed audit` prints: what was recorded, the counts, attacks, checks and findings, and the verdict."""
    return "\n".join(_lines(audit))


def _lines(audit: Audit) -> Iterator[str]:
    yield line_of("job", audit.job)
    yield line_of("security", audit.security)
    yield line_of("recorded", f"{counted(audit.rounds, 'round')}, {human_bytes(audit.nbytes)}")
    yield from (line_of("remark", remark) for remark in audit.remarks)
    yield f"\nSecurity condition of the papers ({NOTE})"
    for one in audit.conditions:
        when = f"round {one.round}" if one.round >= 0 else "outside the rounds"
        yield f"  {one.exchange}, {when}: {one.party} receives {one.receives}"
        yield f"    {one.unknowns} unknowns of {counted(one.rows, 'row')}, {one.numbers} numbers received: {one.text}"
    yield f"\nAttacks, each on what its party received (from at most {MOST_CLIENTS} clients)"
    for result in audit.attacks:
        outcome = ("SUCCEEDS: " if result.success else "fails: ") if result.applies else "does not apply: "
        yield f"  {result.attack}, {result.party} with {result.seen}\n    {outcome}{result.text}"
    yield f"\nMasks and ciphertexts\n  {audit.exact.text}\n\nFindings"
    for finding in audit.findings:
        verdict = "accepted" if finding.accepted else "LEAK"
        yield f"  {verdict:9} {finding.name:16} {NAMES[finding.name]}: {finding.text}"
    if not audit.findings:
        yield "  none"
    names = ", ".join(f'"{finding.name}"' for finding in audit.leaks)
    to_declare = f"leaks that the job does not declare (exit 71); to declare them: [audit] accept = [{names}]"
    yield line_of("verdict", to_declare if names else "no leak beyond those that the job declares (exit 0)")


def write(audit: Audit, folder: Path) -> str:
    """Write report.json, report.txt and pictures of recovered rows; gives why there are no pictures, or ""."""
    mark(folder)
    write_json(folder / "report.json", as_json(audit))
    replace_text(folder / "report.txt", as_text(audit) + "\n")
    for number, result in enumerate(result for result in audit.attacks if result.pairs):
        widths = {len(row) for pair in result.pairs for row in pair}
        side = isqrt(min(widths))
        if widths != {side * side} or side < 2:  # rows are no square images
            continue
        try:
            from matplotlib.image import imsave
        except ImportError:  # the verdict does not depend on pictures
            return "pictures need matplotlib; install it with `pip install 'mpifed[plot]'`"
        lines = [np.hstack([row.reshape(side, side) for row in rows]) for rows in zip(*result.pairs, strict=True)]
        with replaced(folder / f"{number:02d}-{result.attack}{_KINDS.get(result.seen, '')}.png") as file:
            imsave(cast("BinaryIO", file), np.vstack(lines[::-1]), cmap="gray", format="png")  # the originals above
    return ""

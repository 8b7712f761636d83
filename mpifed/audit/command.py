"""The audit of a job, by a short recorded run, and its report: as text, as JSON, as a folder with recovered rows."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from math import isqrt
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np

from mpifed.audit.counts import NOTE, Condition, conditions
from mpifed.audit.equations import equation_attacks
from mpifed.audit.exact import ExactChecks, exact_checks
from mpifed.audit.findings import NAMES, AttackResult, Finding, check_names
from mpifed.audit.gradients import MOST_CLIENTS, gradient_attacks
from mpifed.audit.membership import membership_attack
from mpifed.audit.received import Reader
from mpifed.audit.recording import LIMIT_BYTES, Replay, replay_job
from mpifed.audit.reveals import undeclared
from mpifed.core.errors import DataError, LeakFound, UsageError
from mpifed.core.tables import Table
from mpifed.data.store import open_federation
from mpifed.files.json_file import write_json
from mpifed.files.run_folder import RUN
from mpifed.files.write import replace_text, replaced
from mpifed.job.job import read_table
from mpifed.job.sweep import points
from mpifed.privacy.disclosure import mark
from mpifed.results.text import human_bytes, line_of
from mpifed.run.identity import check_same_data
from mpifed.text import counted

PARTIES = ("server", "client:0")
ROUNDS = 12  # recorded for an audit, unless messages are large
_SHOWN = 3  # occurrences of a finding


class Audit(NamedTuple):
    """All results of an audit."""

    job: str
    security: str  # of the aggregation: plain, masked or encrypted
    recorded: dict[str, int]  # rounds, and bytes
    parties: Sequence[str]
    conditions: list[Condition]
    attacks: list[AttackResult]
    exact: ExactChecks
    findings: list[Finding]
    remarks: list[str]

    @property
    def leaks(self) -> list[str]:
        """Names of findings that the job does not declare."""
        return [finding.name for finding in self.findings if not finding.accepted]


def audited(target: Path, changes: tuple[str, ...], rounds: int | None, parties: Sequence[str] = PARTIES) -> Audit:
    """The audit of a job file, of the first point of a sweep, or of the job of a run; in this process."""
    path = target / "job.toml" if target.is_dir() else target
    if target.is_dir() and not path.exists():
        raise DataError(f"{target}: no job.toml; give a run directory or a job file")
    job = points(read_table(path, changes), str(path))[0].job
    check_names(job.audit.accept)
    if (target / RUN).exists() and not changes:
        check_same_data(target, open_federation(job.data.path))
    replay = replay_job(job, rounds or ROUNDS, float("inf") if rounds else LIMIT_BYTES)
    client = 0
    for name in parties:
        named, _, number = name.partition(":")
        if named not in ("server", "client") or number not in ("", *map(str, replay.shards)):
            raise UsageError(f"--party {name}: expected server, client or client:NUMBER of a client that there is")
        client = int(number or client)
    counts = [one for one in conditions(replay, client) if any(one.party[:6] == name[:6] for name in parties)]
    attacks = [membership_attack(replay)]  # by anybody, on the released model
    if "server" in parties:
        reader = Reader(replay)
        attacks = [*gradient_attacks(reader), *equation_attacks(reader), *attacks]
    remarks = [*replay.algorithm.trust(replay.channel == "plain")]
    if job.privacy is not None:
        remarks.append("the papers' condition is evaluated without the job's noise, and is no finding; attacks see it")
    if rounds is None and replay.rounds < min(ROUNDS, job.rounds):
        more = f"more fill {LIMIT_BYTES >> 20} MiB; see --rounds"
        remarks.append(f"only {counted(replay.rounds, 'round')} recorded: {more}")
    recorded, exact = {"rounds": replay.rounds, "bytes": replay.nbytes}, exact_checks(replay)
    findings = list(_findings(replay, counts, attacks, exact))
    return Audit(job.name, replay.channel, recorded, parties, counts, attacks, exact, findings, remarks)


def _findings(
    replay: Replay, counts: Sequence[Condition], attacks: Sequence[AttackResult], exact: ExactChecks
) -> Iterator[Finding]:
    """The findings, at most one of each name, and whether the job accepts them."""
    texts = defaultdict[str, list[str]](list, exact.leaks)
    if silent := list(undeclared(replay.algorithm)):
        name, where = type(replay.algorithm).__name__, ", ".join(f'"{exchange}"' for exchange in silent)
        give = "give it `reveals`, or with local steps `gain`, see docs/how-to/audit.md"
        texts["undeclared"] = [f"{name} declares nothing in {where}: {give}"]
    if replay.channel == "plain":
        texts["answers"] = ['[aggregation] security = "plain" hides nothing from the server']
    elif clear := {play.exchange.name for play in replay.plays if play.exchange.clear}:
        texts["in-the-clear"] = [f"by design, from every client: {', '.join(sorted(clear))}"]
    for one in counts if replay.job.privacy is None else ():  # the equations hold up to noise only
        if one.determined:
            texts["determined"].append(f"{one.exchange}, {one.party}: {one.numbers} numbers of {one.unknowns} unknowns")
    for result in attacks:
        if result.success:
            texts[result.attack].append(f"{result.seen}: {result.text}")
    for name in NAMES:
        if some := texts[name]:
            more = f"; and {len(some) - _SHOWN} more" if len(some) > _SHOWN else ""
            yield Finding(name, "; ".join(some[:_SHOWN]) + more, name in replay.job.audit.accept)


# --- the report ------------------------------------------------------------------------------------------------------


def as_json(audit: Audit) -> Table:
    """The report, without recovered rows."""
    return {**cast("Table", _plain(audit)), "exit": LeakFound.exit_code if audit.leaks else 0}


def _plain(value: object) -> object:
    if hasattr(value, "_asdict"):
        return {key: _plain(part) for key, part in value._asdict().items() if key != "pairs"}
    return list(map(_plain, value)) if isinstance(value, list) else value


def as_text(audit: Audit) -> Iterator[str]:
    """What `mpifed audit` prints: what was recorded, the counts, attacks, checks and findings, and the verdict."""
    rounds, size = audit.recorded.values()
    yield line_of("job", audit.job)
    yield line_of("security", audit.security)
    yield line_of("recorded", f"{counted(rounds, 'round')}, {human_bytes(size)}")
    yield from (line_of("remark", remark) for remark in audit.remarks)
    yield f"\nSecurity condition of the papers ({NOTE})"
    for one in audit.conditions:
        when = f"round {one.round}" if one.round >= 0 else "outside the rounds"
        verdict = "not shown to be underdetermined" if one.determined else "underdetermined"
        yield f"  {one.exchange}, {when}: {one.party} receives {one.receives}"
        yield f"    {one.unknowns} unknowns of {counted(one.rows, 'row')}, {one.numbers} numbers received: {verdict}"
    yield f"\nAttacks, each on what its party received (from at most {MOST_CLIENTS} clients)"
    for result in audit.attacks:
        outcome = ("SUCCEEDS" if result.success else "fails") if result.applies else "does not apply"
        yield f"  {result.attack}, {result.party} with {result.seen}\n    {outcome}: {result.text}"
    yield f"\nMasks and ciphertexts\n  {audit.exact.text}\n\nFindings"
    for finding in audit.findings:
        verdict = "accepted" if finding.accepted else "LEAK"
        yield f"  {verdict:9} {finding.name:16} {NAMES[finding.name]}: {finding.text}"
    names = json.dumps(audit.leaks)
    to_declare = f"leaks that the job does not declare (exit 71); to declare them: [audit] accept = {names}"
    yield line_of("verdict", to_declare if audit.leaks else "no leak beyond those that the job declares (exit 0)")


def write(audit: Audit, folder: Path) -> None:
    """Write report.json, report.txt and, where rows are square images, recovered ones below true ones by matplotlib."""
    mark(folder)
    write_json(folder / "report.json", as_json(audit))
    replace_text(folder / "report.txt", "\n".join(as_text(audit)) + "\n")
    for number, result in enumerate(audit.attacks if find_spec("matplotlib") else ()):
        side = isqrt(len(result.pairs[0][0])) if result.pairs else 0
        if side > 1 and all(len(row) == side * side for pair in result.pairs for row in pair):
            from matplotlib.image import imsave

            rows = [np.hstack([row.reshape(side, side) for row in part]) for part in zip(*result.pairs, strict=True)]
            with replaced(folder / f"{number:02d}-{result.attack}.png") as file:
                imsave(cast("BinaryIO", file), np.vstack(rows[::-1]), cmap="gray", format="png")

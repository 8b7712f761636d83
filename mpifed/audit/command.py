"""The audit of a job, by a short recorded run, and its report, as text and as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mpifed.audit.equations import equation_attacks
from mpifed.audit.exact import ExactChecks, exact_checks
from mpifed.audit.findings import NAMES, AttackResult, Finding
from mpifed.audit.gradients import MOST_CLIENTS, gradient_attacks
from mpifed.audit.membership import membership_attack
from mpifed.audit.recording import LIMIT_BYTES, Replay, replay_job
from mpifed.audit.reveals import undeclared
from mpifed.core.errors import DataError, LeakFound, UsageError
from mpifed.core.tables import Table
from mpifed.data.store import open_federation
from mpifed.files.run_folder import JOB, RUN
from mpifed.job.job import read_table
from mpifed.job.sweep import points
from mpifed.results.text import human_bytes, line_of
from mpifed.run.identity import check_same_data
from mpifed.text import counted

ROUNDS = 12  # recorded for an audit, unless messages are large
_SHOWN = 3  # occurrences of a finding


@dataclass(frozen=True)
class Audit:
    """All results of an audit."""

    job: str
    security: str  # of the aggregation: plain, masked or encrypted
    recorded: dict[str, int]  # rounds, and bytes
    remarks: list[str]
    attacks: list[AttackResult]
    exact: str  # what was checked of masks and ciphertexts
    findings: list[Finding]

    @property
    def leaks(self) -> list[str]:
        """Names of findings that the job does not declare."""
        return [finding.name for finding in self.findings if not finding.accepted]


def audited(target: Path, changes: tuple[str, ...], rounds: int | None) -> Audit:
    """The audit of a job file, of the first point of a sweep, or of the job of a run; in this process."""
    path = target / JOB if target.is_dir() else target
    if target.is_dir() and not path.exists():
        raise DataError(f"{target}: no {JOB}; give a run directory or a job file")
    job = points(read_table(path, changes), str(path))[0].job
    if unknown := [name for name in job.audit.accept if name not in NAMES]:
        raise UsageError(f"[audit] accept: {', '.join(unknown)} not known; the findings are {', '.join(NAMES)}")
    if job.asynchrony is not None:
        raise UsageError(
            "[asynchrony]: the attacks know answers to the newest model alone; audit the job without that table, with "
            "[participation] clients_per_round"
        )
    if (target / RUN).exists() and not changes:
        check_same_data(target, open_federation(job.data.path))
    replay = replay_job(job, rounds or ROUNDS, float("inf") if rounds else LIMIT_BYTES)
    exact = exact_checks(replay)
    attacks = [*gradient_attacks(replay), *equation_attacks(replay), membership_attack(replay)]
    remarks = [*replay.algorithm.trust(replay.channel == "plain")]
    recorded, findings = {"rounds": replay.rounds, "bytes": replay.nbytes}, [*_findings(replay, attacks, exact)]
    return Audit(job.name, replay.channel, recorded, remarks, attacks, exact.text, findings)


def _findings(replay: Replay, attacks: Sequence[AttackResult], exact: ExactChecks) -> Iterator[Finding]:
    """The findings, at most one of each name, and whether the job accepts them."""
    texts, method = defaultdict[str, list[str]](list, exact.leaks), replay.algorithm
    if silent := ", ".join(f'"{exchange}"' for exchange in undeclared(method)):
        give = "give it `reveals`, or with local steps `gain`, see docs/how-to/audit.md"
        if method.problem.compression is not None:
            give = "compressed uploads are not attacked; audit the job without [compression] too"
        texts["undeclared"] = [f"{type(method).__name__} declares nothing in {silent}: {give}"]
    if replay.channel == "plain":
        texts["answers"] = ['[aggregation] security = "plain" hides nothing from the server']
    elif clear := {play.exchange.name for play in replay.plays if play.exchange.clear}:
        texts["in-the-clear"] = [f"by design, from every client: {', '.join(sorted(clear))}"]
    for result in attacks:
        if result.success:
            texts[result.attack].append(f"{result.seen}: {result.text}")
    for name in NAMES:
        if some := texts[name]:
            more = f"; and {len(some) - _SHOWN} more" if len(some) > _SHOWN else ""
            yield Finding(name, "; ".join(some[:_SHOWN]) + more, name in replay.job.audit.accept)


def as_json(audit: Audit) -> Table:
    """The report."""
    return {**asdict(audit), "exit": LeakFound.exit_code if audit.leaks else 0}


def as_text(audit: Audit) -> Iterator[str]:
    """What `mpifed audit` prints: what was recorded, attacks, checks and findings, and the verdict."""
    yield line_of("job", audit.job)
    yield line_of("security", audit.security)
    yield line_of("recorded", f"{counted(audit.recorded['rounds'], 'round')}, {human_bytes(audit.recorded['bytes'])}")
    yield from (line_of("remark", remark) for remark in audit.remarks)
    yield f"\nAttacks by the server on what it received (from at most {MOST_CLIENTS} clients)"
    for result in audit.attacks:
        outcome = ("SUCCEEDS" if result.success else "fails") if result.applies else "does not apply"
        yield f"  {result.attack}, with {result.seen}\n    {outcome}: {result.text}"
    yield f"\nMasks and ciphertexts\n  {audit.exact}\n\nFindings"
    for finding in audit.findings:
        verdict = "accepted" if finding.accepted else "LEAK"
        yield f"  {verdict:9} {finding.name:16} {NAMES[finding.name]}: {finding.text}"
    to_declare = f"leaks that the job does not declare (exit 71); to declare them: [audit] accept = {audit.leaks}"
    yield line_of("verdict", to_declare if audit.leaks else "no leak beyond those that the job declares (exit 0)")

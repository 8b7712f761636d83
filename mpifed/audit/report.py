"""The report of an audit: as text, as JSON, and as a folder with images of recovered rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mpifed.audit.attack_result import AttackResult
from mpifed.audit.conditions import NOTE, Condition
from mpifed.audit.exact_checks import ExactChecks
from mpifed.audit.findings import NAMES, Finding
from mpifed.audit.gradients import MOST_CLIENTS as MOST_ATTACKED
from mpifed.audit.received import EACH, SEALED, SUM
from mpifed.core.errors import LeakFound, UsageError
from mpifed.core.round import SETUP
from mpifed.core.tables import Table
from mpifed.core.text import counted
from mpifed.files.json_file import write_json
from mpifed.files.write import replace_text
from mpifed.privacy.disclosure import mark
from mpifed.results.text import human_bytes, line_of

PICTURES = 8  # most pairs in an image
_KINDS = {EACH: "-each", SUM: "-sum", SEALED: "-sealed"}


class Audit(NamedTuple):
    """All results of an audit."""

    job: str
    security: str  # of the aggregation: plain, masked or encrypted
    rounds: int
    clients: int
    messages: int
    nbytes: int
    parties: tuple[str, ...]
    conditions: list[Condition]
    attacks: list[AttackResult]
    exact: ExactChecks
    findings: list[Finding]
    remarks: tuple[str, ...] = ()

    @property
    def leaks(self) -> list[Finding]:
        """Findings that the job does not declare."""
        return [finding for finding in self.findings if not finding.accepted]


def as_json(audit: Audit) -> Table:
    return {
        "job": audit.job,
        "security": audit.security,
        "recorded": {"rounds": audit.rounds, "messages": audit.messages, "bytes": audit.nbytes},
        "clients": audit.clients,
        "parties": list(audit.parties),
        "conditions": [
            {
                **condition._asdict(),
                "verdict": condition.verdict,
                "missing": condition.missing,
                "rounds_until": condition.rounds_until,
            }
            for condition in audit.conditions
        ],
        "attacks": [
            {key: value for key, value in result._asdict().items() if key not in ("rows", "truth")}
            for result in audit.attacks
        ],
        "exact": audit.exact._asdict(),
        "findings": [finding._asdict() for finding in audit.findings],
        "remarks": list(audit.remarks),
        "exit": LeakFound.exit_code if audit.leaks else 0,
    }  # fmt: skip


def as_text(audit: Audit) -> str:
    return "\n".join(_lines(audit))


def _lines(audit: Audit) -> Iterator[str]:
    yield line_of("job", audit.job)
    yield line_of("security", audit.security)
    recorded = f"{audit.messages} messages, {human_bytes(audit.nbytes)}, {counted(audit.rounds, 'round')}"
    yield line_of("recorded", recorded)
    for remark in audit.remarks:
        yield line_of("remark", remark)
    yield ""
    yield f"Security condition of the papers ({NOTE})"
    for condition in audit.conditions:
        yield from _condition(condition)
    yield ""
    yield f"Attacks, each on what its party received (from at most {MOST_ATTACKED} clients)"
    for result in audit.attacks:
        yield from _attack(result)
    yield ""
    yield "Masks and ciphertexts"
    yield _indented("this run", audit.exact.text)
    yield ""
    yield "Findings"
    for finding in audit.findings:
        mark = "accepted" if finding.accepted else "LEAK"
        yield f"  {mark:9} {finding.name:16} {NAMES[finding.name]}: {finding.text}"
    if not audit.findings:
        yield "  none"
    yield line_of("verdict", _verdict_text(audit))


def _verdict_text(audit: Audit) -> str:
    if not audit.leaks:
        return "no leak beyond those that the job declares (exit 0)"
    names = ", ".join(f'"{finding.name}"' for finding in audit.leaks)
    return f"leaks that the job does not declare (exit 71); to declare them: [audit] accept = [{names}]"


def _condition(condition: Condition) -> Iterator[str]:
    when = "outside the rounds" if condition.round == SETUP else f"round {condition.round}"
    yield f"  {condition.exchange}, {when}: {condition.party} receives {condition.receives}"
    if condition.numbers == 0:
        yield _indented("", "nothing that depends on private numbers")
        return
    rows = f"{condition.rows} row{'s'[: condition.rows != 1]} of {condition.about}"
    yield _indented("unknowns", f"{condition.unknowns} ({rows})")
    yield _indented("independent equations", f"at most {condition.equations} ({condition.numbers} numbers received)")
    if condition.paper:
        yield _indented("the paper's count", condition.paper)
    yield _indented("verdict", condition.text + _soon(condition))


def _soon(condition: Condition) -> str:
    until = condition.rounds_until
    if until is None or not condition.missing:
        return ""
    return f"; by their count, {until} such rounds might determine all {condition.pool} private numbers"


def _attack(result: AttackResult) -> Iterator[str]:
    how = f", {result.party}" + (f" with {result.seen}" if result.seen else "")
    outcome = ("SUCCEEDS: " if result.success else "fails: ") if result.applies else "does not apply: "
    yield f"  {result.attack}{how}"
    yield _indented("", f"{outcome}{result.text}")


def _indented(label: str, text: str) -> str:
    return f"    {label:26} {text}"


def write(audit: Audit, folder: Path) -> str:
    """Write report.json, report.txt and images of recovered rows; gives why there are no images, or ""."""
    from mpifed.audit.attacks.images import save_pairs

    mark(folder)
    write_json(folder / "report.json", as_json(audit))
    replace_text(folder / "report.txt", as_text(audit) + "\n")
    for number, result in enumerate(result for result in audit.attacks if result.applies and len(result.rows)):
        path = folder / f"{number:02d}-{result.attack}{_KINDS.get(result.seen, '')}.png"
        try:
            save_pairs(path, result.truth[:PICTURES], result.rows[:PICTURES])
        except UsageError as missing:  # the verdict does not depend on images
            return str(missing)
    return ""

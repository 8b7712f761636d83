"""The audit for a person, as an object, and as a folder with pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mpifed.audit.attempt import Attempt
from mpifed.audit.conditions import NOTE, Condition
from mpifed.audit.exact import Exact
from mpifed.audit.findings import NAMES, Finding
from mpifed.audit.gradients import MOST_CLIENTS as MOST_ATTACKED
from mpifed.audit.reader import EACH, SEALED, SUM
from mpifed.audit.sealed import MOST_CLIENTS
from mpifed.audit.uniform import LARGEST, LEVEL, Verdict
from mpifed.core.errors import UsageError
from mpifed.core.round import SETUP
from mpifed.core.text import counted
from mpifed.run.disclosure import mark
from mpifed.run.history import aside, write_json
from mpifed.run.show import human_bytes

PICTURES = 8  # pairs, at most, in one picture
_KINDS = {EACH: "-each", SUM: "-sum", SEALED: "-sealed"}


class Audit(NamedTuple):
    """Everything that was found."""

    job: str
    channel: str
    source: str  # where the transcript is from
    rounds: int
    clients: int
    messages: int
    nbytes: int
    left_out: int
    left_out_bytes: int
    parties: tuple[str, ...]
    conditions: list[Condition]
    attempts: list[Attempt]
    uniform: Verdict
    clear: dict[str, int]  # integers of fields that travel in the clear by design
    control: Verdict  # the same tests on the plain transcript
    exact: Exact
    longest: int  # words of an upload, of which some are tested
    findings: list[Finding]
    remarks: tuple[str, ...] = ()

    @property
    def leaks(self) -> list[Finding]:
        """What was found and is not declared."""
        return [one for one in self.findings if not one.accepted]

    @property
    def missed_client(self) -> float:
        """The chance that the tests of uniformity do not look at one client's uploads to an exchange."""
        return max(0.0, 1 - MOST_CLIENTS / self.clients)

    @property
    def missed_word(self) -> float:
        """The share of the longest upload that they do not look at."""
        return max(0.0, 1 - LARGEST / self.longest) if self.longest else 0.0


def as_json(audit: Audit) -> dict[str, Any]:
    """One object."""
    return {
        "job": audit.job,
        "channel": audit.channel,
        "transcript": {
            "source": audit.source, "rounds": audit.rounds, "messages": audit.messages, "bytes": audit.nbytes,
            "left_out": audit.left_out, "left_out_bytes": audit.left_out_bytes,
        },
        "clients": audit.clients,
        "parties": list(audit.parties),
        "conditions": [
            {**one._asdict(), "verdict": one.verdict, "missing": one.missing, "rounds_until": one.rounds_until}
            for one in audit.conditions
        ],
        "attacks": [
            {key: value for key, value in one._asdict().items() if key not in ("found", "truth", "exchanges")}
            for one in audit.attempts
        ],
        "uniform": _verdict(audit.uniform) | {"in_the_clear": audit.clear},
        "control": _verdict(audit.control),
        "missed": {"client": audit.missed_client, "word": audit.missed_word},
        "exact": {**audit.exact._asdict(), "text": audit.exact.text},
        "findings": [one._asdict() for one in audit.findings],
        "remarks": list(audit.remarks),
        "exit": 7 if audit.leaks else 0,
    }  # fmt: skip


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "uniform": verdict.uniform,
        "level": LEVEL,
        "tests": len(verdict.results),
        "rejected": len(verdict.rejected),
        "smallest_p": min((one.p for one in verdict.results), default=None),
        "rejected_first": [one._asdict() for one in verdict.rejected[:5]],
        "uploads": verdict.samples,
        "too_short": verdict.short,
    }


def as_text(audit: Audit) -> str:
    """Plain aligned lines."""
    return "\n".join(_lines(audit))


def _lines(audit: Audit) -> Iterator[str]:
    yield _line("job", audit.job)
    yield _line("channel", audit.channel)
    transcript = (
        f"{audit.messages} messages, {human_bytes(audit.nbytes)}, {counted(audit.rounds, 'round')}, {audit.source}"
    )
    yield _line("transcript", transcript)
    if audit.left_out:
        yield _line("NOT in it", f"{audit.left_out} messages, {human_bytes(audit.left_out_bytes)}: beyond its limit")
    for remark in audit.remarks:
        yield _line("remark", remark)
    yield ""
    yield f"The papers' condition ({NOTE})"
    for one in audit.conditions:
        yield from _condition(one)
    yield ""
    yield f"Attacks, each on what its party received (of at most {MOST_ATTACKED} clients)"
    for attempt in audit.attempts:
        yield from _attempt(attempt)
    yield ""
    alarm = f", false alarm {audit.exact.false_alarm:.1g}" if audit.exact.what else ""
    yield f"What is sealed, all of it{alarm}"
    yield _indented("this channel", audit.exact.text)
    yield ""
    yield (
        f"Uniformity of uploads (false alarm of the whole family {LEVEL:g}; of each exchange {MOST_CLIENTS} clients, "
        f"drawn by the seed: one is missed with chance {audit.missed_client:.0%}; of each upload {LARGEST} words in a "
        f"row: one is missed with chance {audit.missed_word:.0%})"
    )
    yield from _uniform(audit)
    yield ""
    yield "Findings"
    for finding in audit.findings:
        mark = "accepted" if finding.accepted else "LEAK"
        yield f"  {mark:9} {finding.name:16} {NAMES[finding.name]}: {finding.text}"
    if not audit.findings:
        yield "  none"
    yield _line("verdict", _verdict_text(audit))


def _verdict_text(audit: Audit) -> str:
    if not audit.leaks:
        return "nothing beyond what the job declares (exit 0)"
    names = ", ".join(f'"{one.name}"' for one in audit.leaks)
    return f"more than the job declares (exit 7); what may be known is declared by [audit] accept = [{names}]"


def _condition(one: Condition) -> Iterator[str]:
    when = "beside the rounds" if one.round == SETUP else f"round {one.round}"
    yield f"  {one.exchange}, {when}: {one.party} receives {one.hears}"
    if one.numbers == 0:
        yield _indented("", "nothing of the private numbers")
        return
    equations = f"at most {one.equations}" if one.counted else str(one.equations)
    rows = f"{one.rows} row{'s'[: one.rows != 1]} of {one.about}"
    yield _indented("unknowns", f"{one.unknowns} ({rows})")
    yield _indented("independent equations", f"{equations} ({one.numbers} numbers received)")
    if one.paper:
        yield _indented("the paper's count", one.paper)
    yield _indented("verdict", one.text + _soon(one))


def _soon(one: Condition) -> str:
    until = one.rounds_until
    if until is None or not one.missing:
        return ""
    return f"; by counting, all {one.pool} private numbers might be determined after {until} such rounds"


def _attempt(one: Attempt) -> Iterator[str]:
    how = f", {one.party}" + (f" has {one.seen}" if one.seen else "")
    outcome = ("SUCCEEDS: " if one.success else "fails: ") if one.applies else "does not apply: "
    yield f"  {one.attack}{how}"
    yield _indented("", f"{outcome}{one.text}")


def _uniform(audit: Audit) -> Iterator[str]:
    sealed = audit.channel != "plain"
    words = {None: "nothing long enough to test", True: "cannot be told from uniform", False: "NOT uniform"}
    yield _indented("this channel", _tests(audit.uniform, words[audit.uniform.uniform]) if sealed else "seals nothing")
    for name, count in audit.clear.items():
        yield _indented("in the clear, by design", f"{name}: {count} integers of single clients")
    told = {None: "nothing long enough to test", True: "the tests cannot tell", False: "the tests can tell: they fail"}
    yield _indented("control: plain", _tests(audit.control, told[audit.control.uniform]))


def _tests(verdict: Verdict, text: str) -> str:
    short = f", {verdict.short} too short" if verdict.short else ""
    smallest = min((one.p for one in verdict.results), default=None)
    least = "" if smallest is None else f", smallest p {smallest:.2g}"
    return f"{text} ({len(verdict.rejected)} of {len(verdict.results)} tests, {verdict.samples} uploads{short}{least})"


def _line(label: str, text: str) -> str:
    return f"{label:30} {text}"


def _indented(label: str, text: str) -> str:
    return f"    {label:26} {text}"


def write(audit: Audit, folder: Path) -> str:
    """report.json, report.txt, and pictures of what was found below what was there; "" or why there are no pictures."""
    from mpifed.audit.attacks.images import save_pairs, side

    mark(folder)
    write_json(folder / "report.json", as_json(audit))
    with aside(folder / "report.txt") as temporary:
        temporary.write_text(as_text(audit) + "\n", encoding="utf-8")
    for number, one in enumerate(_pictured(audit.attempts)):
        if side(one.found.shape[1]) is None:
            continue
        path = folder / f"{number:02d}-{one.attack}{_KINDS.get(one.seen, '')}.png"
        try:
            save_pairs(path, one.truth[:PICTURES], one.found[:PICTURES])
        except UsageError as missing:  # no reason to keep the verdict back
            return str(missing)
    return ""


def _pictured(attempts: Sequence[Attempt]) -> list[Attempt]:
    return [one for one in attempts if one.applies and len(one.found)]

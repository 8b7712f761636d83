"""Findings of an audit, by stable names: a job declares in `[audit] accept` the ones that it accepts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from mpifed.audit import exact_checks
from mpifed.audit.attack import ATTACKS, AttackResult
from mpifed.audit.conditions import Condition
from mpifed.audit.recording import Replay
from mpifed.audit.reveals import undeclared
from mpifed.core.errors import UsageError
from mpifed.core.record import leaves

UNDECLARED, ANSWERS, CLEAR, DETERMINED = "undeclared", "answers", "in-the-clear", "determined"
NAMES = {
    UNDECLARED: "the algorithm declares nothing of what its uploads reveal, so that they were not attacked",
    ANSWERS: "the server reads the uploads of single clients",
    CLEAR: "the server reads the uploads of single clients in an exchange that is neither masked nor encrypted",
    DETERMINED: "a party receives as many numbers as there are private unknowns behind them",
    **exact_checks.NAMES,
    **ATTACKS,
}
_SHOWN = 3  # occurrences of a finding


class Finding(NamedTuple):
    """A leak, and whether the job declares it."""

    name: str
    text: str
    accepted: bool


def check_names(accepted: Sequence[str]) -> None:
    """Check that a job accepts known findings only; UsageError for a name that is no finding."""
    unknown = [name for name in accepted if name not in NAMES]
    if unknown:
        raise UsageError(f"[audit] accept: {', '.join(unknown)} not known; the findings are {', '.join(NAMES)}")


def findings(
    replay: Replay, conditions: Sequence[Condition], attacks: Sequence[AttackResult], sealed: exact_checks.ExactChecks
) -> list[Finding]:
    """The findings, at most one of each name, and whether the job accepts them."""
    texts = defaultdict[str, list[str]](list, sealed.leaks)
    if silent := undeclared(replay.algorithm):
        name, where = type(replay.algorithm).__name__, ", ".join(f'"{exchange}"' for exchange in silent)
        give = "give it `reveals`, or with local steps `gain`, see docs/how-to/audit.md"
        texts[UNDECLARED] = [f"{name} declares nothing in {where}: {give}"]
    if replay.channel == "plain":
        texts[ANSWERS] = ['[aggregation] security = "plain" hides nothing from the server']
    else:
        played = [play.exchange for play in replay.transcript.plays if play.exchange.clear]
        for name, fields in {exchange.name: exchange.fields for exchange in played}.items():
            texts[CLEAR].append(
                f"by design, from every client: {name} ({', '.join(leaf for leaf, _ in leaves(fields))})"
            )
    for condition in conditions if replay.job.privacy is None else ():  # the equations hold up to noise only
        if condition.determined:
            texts[DETERMINED].append(f"{condition.exchange}, {condition.party}: {condition.text}")
    for result in attacks:
        if result.success:
            texts[result.attack].append(f"{result.seen}: {result.text}")
    accepted, listed = replay.job.audit.accept, list[Finding]()
    for name in (name for name in NAMES if name in texts):
        more = len(texts[name]) - _SHOWN
        shown = texts[name][:_SHOWN] + ([f"and {more} more"] if more > 0 else [])
        listed.append(Finding(name, "; ".join(shown), name in accepted))
    return listed

"""Findings of an audit, by stable names: a job declares in `[audit] accept` the ones that it accepts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpifed.audit import exact_checks
from mpifed.audit.attack_result import ATTACKS, AttackResult
from mpifed.audit.conditions import UNDERDETERMINED, Condition
from mpifed.audit.received import Reader
from mpifed.audit.replay import Replay
from mpifed.core.errors import UsageError
from mpifed.core.record import leaves
from mpifed.run.setup import measures_of

UNDECLARED, ANSWERS, CLEAR, DETERMINED = "undeclared", "answers", "in-the-clear", "determined"
NAMES = {
    UNDECLARED: "the algorithm declares nothing of what its uploads reveal, so that they were not attacked",
    ANSWERS: "the server reads the uploads of single clients",
    CLEAR: "the server reads the uploads of single clients in an exchange that is neither masked nor encrypted",
    DETERMINED: "a party receives as many numbers as there are private unknowns behind them",
    **exact_checks.NAMES,
    **ATTACKS,
}


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
    reader: Reader, conditions: Sequence[Condition], attacks: Sequence[AttackResult], sealed: exact_checks.ExactChecks
) -> list[Finding]:
    """The findings, at most one of each name, and whether the job accepts them."""
    replay, texts = reader.replay, dict[str, list[str]]()
    if reader.undeclared:
        name, where = type(replay.algorithm).__name__, ", ".join(f'"{exchange}"' for exchange in reader.undeclared)
        give = "give it `reveals`, or with local steps `gain`, see docs/how-to/audit.md"
        texts[UNDECLARED] = [f"{name} declares nothing in {where}: {give}"]
    plain = replay.channel == "plain"
    if plain:
        texts[ANSWERS] = ['[aggregation] security = "plain" hides nothing from the server']
    else:
        clear = _in_clear(replay)
        texts |= {CLEAR: [f"by design, from every client: {', '.join(clear)}"]} if clear else {}
        texts |= sealed.leaks
    noisy = replay.job.privacy is not None  # the equations hold up to noise only
    determined = [
        f"{condition.exchange}, {condition.party}: {condition.text}"
        for condition in conditions
        if condition.unknowns and condition.numbers and condition.verdict != UNDERDETERMINED and not noisy
    ]
    texts |= {DETERMINED: determined} if determined else {}
    for result in attacks:
        if result.success:
            texts.setdefault(result.attack, []).append(f"{result.seen}: {result.text}")
    accepted = replay.job.audit.accept
    return [Finding(name, "; ".join(texts[name]), name in accepted) for name in NAMES if name in texts]


def _in_clear(replay: Replay) -> list[str]:
    """Exchanges that are sent in the clear under every security setting, with their fields."""
    measures = measures_of(replay.job, replay.algorithm) if replay.job.record.evaluate_every else ()
    measured = [exchange for measure in measures for exchange in measure.exchanges]
    played = (*replay.algorithm.setup, *replay.exchanges, *measured)
    clear = {exchange.name: exchange for exchange in played if exchange.clear}
    return [f"{name} ({', '.join(leaf for leaf, _ in leaves(exchange.fields))})" for name, exchange in clear.items()]

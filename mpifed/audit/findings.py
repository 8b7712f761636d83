"""What an audit can find, by names that do not change: a job that knows of one declares it in `[audit] accept`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpifed.audit import exact
from mpifed.audit.attempt import BITS, INVERSION, LINEAR, MEMBERSHIP, MOVED, PRODUCTS, RECONSTRUCTION, SENT, Attempt
from mpifed.audit.conditions import UNDERDETERMINED, Condition
from mpifed.audit.stage import Stage
from mpifed.audit.uniform import Verdict
from mpifed.core.errors import UsageError
from mpifed.core.record import leaves
from mpifed.run.setup import measures_of

ANSWERS, CLEAR, SINGLE, DETERMINED, NOT_UNIFORM = (
    "answers", "in-the-clear", "single-holder", "determined", "not-uniform",
)  # fmt: skip
NAMES = {
    ANSWERS: "the server reads what single clients answer",
    CLEAR: "the server reads what single clients answer to an exchange that no channel seals",
    SINGLE: "a sum that is opened has values of one client alone",
    DETERMINED: "a party receives as many independent equations as there are private numbers in them",
    NOT_UNIFORM: "what a channel has sealed can be told from random numbers",
    **exact.NAMES,
    RECONSTRUCTION: "a row was computed from the gradient of a minibatch of one",
    INVERSION: "rows were computed from the gradient of a few",
    PRODUCTS: "rows were computed from their inner products with known weights",
    LINEAR: "rows were computed from linear equations between what was sent",
    MOVED: "a row was computed from how a sum over dual variables changed when one alone moved",
    SENT: "a row stands in an answer, up to a factor",
    MEMBERSHIP: "the final model tells rows that were trained on from others",
    BITS: "the rounding of a private release tells where nothing was added to its noise",
}


class Finding(NamedTuple):
    """Something that a party learns."""

    name: str
    text: str
    accepted: bool


def check_names(accepted: Sequence[str]) -> None:
    """UsageError when a job accepts what no audit finds."""
    unknown = [name for name in accepted if name not in NAMES]
    if unknown:
        raise UsageError(f"[audit] accept: {', '.join(unknown)} not known; findings are {', '.join(NAMES)}")


def findings(
    stage: Stage,
    single: Sequence[str],
    conditions: Sequence[Condition],
    tried: Sequence[Attempt],
    verdict: Verdict,
    sealed: exact.Exact,
) -> list[Finding]:
    """One of each kind that was found, the job's own word beside it.

    Parameters
    ----------
    single : see `mpifed.audit.single`
    """
    found: dict[str, list[str]] = {}
    plain = stage.transcript.channel == "plain"
    if plain:
        found[ANSWERS] = ['channel "plain" hides nothing from the server']
    else:
        clear = _in_clear(stage)
        found |= {CLEAR: [f"by design, of every client {', '.join(clear)}"]} if clear else {}
        found |= {SINGLE: list(single)} if single else {}
        if verdict.uniform is False:
            worst = verdict.rejected[0]
            found[NOT_UNIFORM] = [f"{len(verdict.rejected)} tests of uploads fail, {worst.test} of {worst.what} first"]
        found |= sealed.leaks
    noisy = stage.job.privacy is not None  # the equations hold up to noise only
    determined = [f"{one.exchange}, {one.party}: {one.text}" for one in conditions if _determines(one) and not noisy]
    found |= {DETERMINED: determined} if determined else {}
    for one in tried:
        if one.success:
            found.setdefault(one.attack, []).append(f"{one.seen}: {one.text}")
    accepted = stage.job.audit.accept
    return [Finding(name, "; ".join(found[name]), name in accepted) for name in NAMES if name in found]


def _in_clear(stage: Stage) -> list[str]:
    """Exchanges that travel in the clear in whatever channel."""
    measures = measures_of(stage.job, stage.algorithm) if stage.job.record.evaluate_every else ()
    measured = [one for measure in measures for one in measure.exchanges]
    played = (*stage.algorithm.setup, *stage.exchanges, *measured)
    known = {one.name: one for one in played if not one.private}
    return [f"{name} ({', '.join(leaf for leaf, _ in leaves(one.fields))})" for name, one in known.items()]


def _determines(one: Condition) -> bool:
    return one.unknowns > 0 and one.numbers > 0 and one.verdict != UNDERDETERMINED

"""How a run ends: the orders that end it, and the error that reports each end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mpifed.comm.sums import ENOUGH
from mpifed.core.errors import BudgetSpent, Interrupted, MpifedError, NotCertified, TooFewClients
from mpifed.core.tables import Table
from mpifed.job import goals
from mpifed.job.job import Job

if TYPE_CHECKING:
    from mpifed.privacy.ledger_file import Header

FAILURE = "failure.txt"  # the message of the first rank to fail
STANDING: set[Path] = set()  # folders whose old run stands: what is to take its place has written nothing yet
LIMIT_REACHED = -1  # an order: the run ends normally
INTERRUPTED = Interrupted.exit_code  # an order: write a checkpoint and end
BUDGET_SPENT = BudgetSpent.exit_code  # an order: the run ends and cannot go on
TOO_FEW = TooFewClients.exit_code  # all ranks decide it: too many clients left in every attempt


class Opened(NamedTuple):
    """The state of a run's folder when the run starts."""

    job: Job  # with the block that it began with
    saved: bool  # whether there is a checkpoint to go on from
    header: Header | None  # of its ledger
    ended: int | None  # the exit code, if the run has ended with exactly this job and its result is valid
    damaged: str = ""  # what is wrong with its run.json, which is written anew


class Result(NamedTuple):
    """The result of a run; on rank 0, None elsewhere."""

    run_dir: Path
    rounds: int
    columns: Table  # the last measured row
    model: Any  # of the algorithm's own class; of a run that has ended before, its arrays by name


def code_of(error: BaseException) -> int:
    """The exit code of a run that ends by an error."""
    if isinstance(error, MpifedError):
        return error.exit_code or 1
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def ended(
    code: int, job: Job, done: int, out: Path, result: Result | None, lacking: Sequence[str], refusal: str | None
) -> Result | None:
    """The result of a run that ends after `done` rounds; or the error that reports this end, the same on every rank.

    Parameters
    ----------
    result : on rank 0
    lacking : the goals of the job that the last model does not reach
    refusal : why the budget allows no further round
    """
    part, stands = job.participation, f"the model of round {done} stands in {out}"
    if code == INTERRUPTED:
        raise Interrupted(f"interrupted after round {done}, whose checkpoint is written in {out}", agreed=True)
    if code == BUDGET_SPENT:
        raise BudgetSpent(
            f"{refusal or 'the privacy budget is reached'}; {stands}, and the run goes on only with a larger budget: "
            "--set stop.epsilon=... --resume",
            agreed=True,
        )
    if code == TOO_FEW:
        raise TooFewClients(
            f"round {done}: in each of {part.attempts} attempts more than [participation] max_dropouts = "
            f"{part.max_dropouts} clients left, or in one after a sum had been opened already; a sum of so few is "
            f"not opened; {stands}; start anew with larger max_dropouts or attempts",
            agreed=True,
        )
    if code == NotCertified.exit_code:
        limit = "patience" if job.stop.seconds is None else "seconds"
        more = "--set rounds=..." if done >= job.rounds else f"--set stop.{limit}=..."
        error = NotCertified(
            f"not reached in {done} rounds: {'; '.join(lacking)}; the model stands in {out}; where more rounds may "
            f"help, go on with {more} --resume",
            agreed=True,
        )
        error.result = result
        raise error
    return result


def as_it_ended(code: int, job: Job, out: Path) -> Result | None:
    """`ended`, of a run that has ended with exactly this job, from its folder; on rank 0. Nothing is written."""
    from mpifed.files.history import last_row
    from mpifed.files.model_file import MODEL, read_model
    from mpifed.files.run_folder import read_run

    about, row = read_run(out), last_row(out)
    lacking = list(goals.unreached(job, {**row, **about}))
    result = Result(out, about["rounds"], row, read_model(out / MODEL))
    return ended(code, job, about["rounds"], out, result, lacking, None)


def rounded_away(steps: Sequence[Mapping[str, float]], uncertain: bool) -> Iterator[str]:
    """A warning where the grid of exact sums leaves too few digits of values.

    Parameters
    ----------
    steps : of each rank, by field the largest value in steps of the grid; see `note_steps`
    uncertain : whether a certificate was left empty therefore
    """
    largest = {name: max(of_rank[name] for of_rank in steps) for name in set().union(*steps)}
    most = max(ENOUGH, min(filter(None, largest.values()), default=0.0)) if uncertain else ENOUGH
    names = sorted(name for name, size in largest.items() if 0 < size <= most)
    if names:
        yield (
            f"{', '.join(names)}: the grid of exact sums rounds these values away, or too many of their digits: the "
            "model may learn nothing from them, and a certificate that needs them is left empty; scale the columns, as "
            "`mpifed data ... --scale standard` does, and the targets, or take larger steps"
        )

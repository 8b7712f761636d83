"""The ends of runs: what their exit codes mean, and which have a result that stands."""

from __future__ import annotations

from typing import NamedTuple

from mpifed.core.errors import (
    BudgetSpent,
    DataError,
    Interrupted,
    LeakFound,
    MpifedError,
    NotCertified,
    NumericalError,
    UsageError,
)


class End(NamedTuple):
    """What an exit code means."""

    code: int
    summary: str  # of a run, in a line
    meaning: str  # in full, in Markdown
    stands: bool = False  # whether the run has ended for good, with a result


_SIGNALS = 64  # the largest number of one: an outcome of a run has a code above, which no launcher gives by itself
ENDS = (
    End(0, "done", "done: all rounds, or what `[stop]` asks for is reached", stands=True),
    End(
        MpifedError.exit_code, "error",
        "error; also when too many clients leave, `attempts` times, or a message was altered: then nothing was opened",
    ),
    End(
        UsageError.exit_code, "invalid job or command line",
        "invalid job or command line; also a folder in use, and a run that `--resume` does not fit",
    ),
    End(
        DataError.exit_code, "data: a file is missing or damaged",
        "data: a file is missing or damaged, or a disk is full, read-only or gone",
    ),
    End(
        NumericalError.exit_code, "numerical trouble: it would fail the same way again",
        "numerical trouble: a value is not finite, or outside its bound",
    ),
    End(
        NotCertified.exit_code, "a limit is not met, or what [stop] asks for not reached",
        "a limit is not met, or what `[stop]` asks for was not reached; the result stands", stands=True,
    ),
    End(
        BudgetSpent.exit_code, "the privacy budget is reached",
        "the privacy budget is reached; the result stands", stands=True,
    ),
    End(LeakFound.exit_code, "the audit found a leak", "`mpifed audit` found more than the job declares"),
    End(Interrupted.exit_code, "interrupted; go on with --resume", "interrupted, and resumable"),
)  # fmt: skip
FINISHED = tuple(end.code for end in ENDS if end.stands)  # exit codes of runs whose result stands


def end_of(code: int) -> End:
    """The meaning of an exit code; others are signals, which a shell gives as 128 + n, and MPICH's mpiexec as n."""
    number = code - 128 if code > 128 else code
    text = f"signal {number}" if 0 < number <= _SIGNALS else "error"
    return next((end for end in ENDS if end.code == code), End(code, text, text))

"""The errors of mpifed and their exit codes.

Every error that a user can cause or meet carries its own exit code (docs/reference/exit-codes.md); the command line
turns it into one message and that code, on every rank alike.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class MpifedError(Exception):
    """Something went wrong that is neither usage, data nor numbers."""

    exit_code = 1
    agreed = False  # whether every rank raises it alike, so that all can end in order

    def __init__(self, *arguments: object, agreed: bool | None = None) -> None:
        super().__init__(*arguments)
        if agreed is not None:
            self.agreed = agreed


class UnexpectedError(MpifedError):
    """Any other exception, as it travels between ranks: where it happened, and its traceback."""


class UsageError(MpifedError):
    """The job or the command line is invalid."""

    exit_code = 2


class DataError(MpifedError):
    """A file or shard is missing, damaged or not what its header says."""

    exit_code = 3


class NumericalError(MpifedError):
    """A number is not finite, or lies outside the bound declared for it."""

    exit_code = 68


class NotCertified(MpifedError):
    """The rounds ended with a limit that is not met, or without what [stop] asks for; `result` stands."""

    exit_code = 69
    # on rank 0: the mpifed.run.outcome.Result that the run would have returned, which core does not know
    result: Any = None


class BudgetSpent(MpifedError):
    """Another round would cost more privacy than the job allows; the result stands, the run cannot go on."""

    exit_code = 70


class LeakFound(MpifedError):
    """The audit found that a protocol leaks more than the job declares."""

    exit_code = 71


class TooFewClients(MpifedError):
    """A sum of so few clients' answers that it must not, or cannot, be opened."""


class BrokenProtocol(MpifedError):
    """What came over a protected channel is not what an honest party sends: nothing was opened."""


class Interrupted(MpifedError):
    """The run was told to stop; its checkpoint stands and can be resumed."""

    exit_code = 75


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

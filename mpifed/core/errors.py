"""The errors of mpifed and their exit codes.

Every error that a user can cause or meet carries its own exit code (docs/reference/files.md); the command line
turns it into one message and that code, on every rank alike.
"""

from __future__ import annotations

from typing import Any


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

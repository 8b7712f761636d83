"""What can go wrong, and the exit code that says so.

Every error that a user can cause or meet carries its own exit code (docs/reference/exit-codes.md); the command line
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
    """The command line or the job asks for something that cannot be."""

    exit_code = 2


class DataError(MpifedError):
    """A file or shard is missing, damaged or not what its header says."""

    exit_code = 3


class NumericalError(MpifedError):
    """A number is not finite, or lies outside the bound declared for it."""

    exit_code = 4


class NotCertified(MpifedError):
    """The rounds ended with a limit that is not met, or without the certificate that was asked for; `result` stands."""

    exit_code = 5
    result: Any = None  # on rank 0: the mpifed.run.loop.Result that the run would have returned


class BudgetSpent(MpifedError):
    """Another round would cost more privacy than the job allows; the result stands, the run cannot go on."""

    exit_code = 6


class LeakFound(MpifedError):
    """The audit found that a protocol leaks more than the job declares."""

    exit_code = 7


class TooFewClients(MpifedError):
    """A sum of so few clients' answers that it must not, or cannot, be opened."""


class BrokenProtocol(MpifedError):
    """What came over a protected channel is not what an honest party sends: nothing was opened."""


class Interrupted(MpifedError):
    """The run was told to stop; its checkpoint stands and can be resumed."""

    exit_code = 75

"""What an audit may find, by stable names: a job declares in `[audit] accept` the findings that it accepts."""

from __future__ import annotations

from dataclasses import dataclass

NAMES = {
    "undeclared": "the algorithm declares nothing of what its uploads reveal, so that they were not attacked",
    "answers": "the server reads the uploads of single clients",
    "in-the-clear": "the server reads single clients' uploads in an exchange that is neither masked nor encrypted",
    "no-mask": "numbers that should be masked were sent unmasked",
    "repeated-mask": "a mask was reused, possibly with the opposite sign, or the randomness of a ciphertext",
    "mask-left": "masks do not cancel in a sum for the server, which differs from the sum of the clients' uploads",
    "reconstruction": "a row was reconstructed from the gradient of a minibatch of one row",
    "inversion": "rows were reconstructed from the gradient of a small minibatch",
    "inner-products": "rows were reconstructed from their inner products with known weights",
    "linear-system": "rows were reconstructed by solving linear equations between messages",
    "membership": "the last model distinguishes rows that entered from others",
}


EACH, SUM = "each client's upload", "the decoded sum"  # what an attacker is given


@dataclass(frozen=True)
class AttackResult:
    """An attack on all messages of one kind that a party received, and its result."""

    attack: str  # also the name of the finding, where it succeeds
    seen: str  # what the attacker was given
    text: str  # the result, or why the attack does not apply
    applies: bool = False
    success: bool = False
    recovered: int = 0  # number of rows
    of: int = 0  # number of rows that might have been recovered


@dataclass(frozen=True)
class Finding:
    """A leak, and whether the job declares it."""

    name: str
    text: str
    accepted: bool

"""Runs all attacks of an audit."""

from __future__ import annotations

from mpifed.audit.attempt import Attempt
from mpifed.audit.gradients import on_gradients, on_undeclared_gradients
from mpifed.audit.membership import membership_attempt
from mpifed.audit.noise import on_noise
from mpifed.audit.reader import Reader
from mpifed.audit.sent import sent_rows
from mpifed.audit.systems import systems, undeclared_products
from mpifed.maths.objectives import Parameters


def attempts(reader: Reader, model: Parameters) -> list[Attempt]:
    """Attacks by the server on uploads and sums, and by anybody on the released models."""
    declared = [*on_gradients(reader), *systems(reader)]
    # declarations by `reveals` may be wrong or incomplete: where they lead to no success, guesses are tried as well
    explained = {name for attempt in declared if attempt.success for name in attempt.exchanges}
    guessed = [*on_undeclared_gradients(reader, explained), *undeclared_products(reader, explained)]
    explained |= {name for attempt in guessed for name in attempt.exchanges}
    return [
        *declared,
        *guessed,
        *sent_rows(reader, explained),
        *on_noise(reader),
        membership_attempt(reader.stage, model),
    ]

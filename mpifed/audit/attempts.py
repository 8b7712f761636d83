"""All attacks of an audit."""

from __future__ import annotations

from mpifed.audit.attempt import Attempt
from mpifed.audit.gradients import on_gradients, on_unsaid_gradients
from mpifed.audit.membership import membership_attempt
from mpifed.audit.noise import on_noise
from mpifed.audit.reader import Reader
from mpifed.audit.sent import sent_rows
from mpifed.audit.systems import systems, unsaid_products
from mpifed.maths.objectives import Parameters


def attempts(reader: Reader, model: Parameters) -> list[Attempt]:
    """Those of the server, and of anybody who has the models."""
    told = [*on_gradients(reader), *systems(reader)]
    # what an algorithm says may be wrong, or less than all: where it leads to nothing, guesses are tried beside it
    explained = {name for one in told if one.success for name in one.exchanges}
    unsaid = [*on_unsaid_gradients(reader, explained), *unsaid_products(reader, explained)]
    explained |= {name for one in unsaid for name in one.exchanges}
    return [*told, *unsaid, *sent_rows(reader, explained), *on_noise(reader), membership_attempt(reader.stage, model)]

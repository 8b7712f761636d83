"""All attacks of an audit."""

from __future__ import annotations

from mpifed.audit.attempt import Attempt
from mpifed.audit.gradients import on_gradients
from mpifed.audit.membership import membership_attempt
from mpifed.audit.noise import on_noise
from mpifed.audit.reader import Reader
from mpifed.audit.stage import Stage
from mpifed.audit.systems import systems
from mpifed.maths.objectives import Parameters
from mpifed.run.transcript import Message


def attempts(stage: Stage, messages: tuple[Message, ...], model: Parameters) -> list[Attempt]:
    """Those of the server, and of anybody who has the models."""
    reader = Reader(stage, messages)
    return [
        *on_gradients(reader),
        *systems(reader),
        *on_noise(reader),
        membership_attempt(stage, model),
    ]

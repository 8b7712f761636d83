"""The ranges of hyper-parameters: beyond them numbers overflow, or memory and time would never suffice."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Le

Weight = Annotated[float, Ge(0), Le(1e30)]  # float32 ends at 3.4e38, and products with data must not overflow
Size = Annotated[float, Gt(0), Le(1e30)]
Count = Annotated[int, Gt(0), Le(10**8)]
Repeats = Annotated[int, Gt(0), Le(10**6)]  # repetitions within a round
Decay = Annotated[float, Ge(0), Le(10.0)]  # of a step size: t^10 is finite for all rounds

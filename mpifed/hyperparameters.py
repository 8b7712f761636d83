"""What users set: classes that are made by keywords, as `FedAvg(batch_size=32)`, and the ranges of their numbers."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Annotated

from annotated_types import Ge, Gt, Le
from typing_extensions import Self

from mpifed.text import nearest

# beyond them numbers overflow, or memory and time would never suffice
Weight = Annotated[float, Ge(0), Le(1e30)]  # float32 ends at 3.4e38, and products with data must not overflow
Size = Annotated[float, Gt(0), Le(1e30)]
Count = Annotated[int, Gt(0), Le(10**8)]
Repeats = Annotated[int, Gt(0), Le(10**6)]  # repetitions within a round
Decay = Annotated[float, Ge(0), Le(10.0)]  # of a step size: t^10 is finite for all rounds

_signature = lru_cache(maxsize=64)(inspect.signature)  # which takes longer than the copy that a round may make


class MadeByKeywords:
    """Base of what programs make by keywords, as `FedAvg(batch_size=32)`: a misspelt one is told the nearest."""

    def __new__(cls, *args: object, **keywords: object) -> Self:
        known = _signature(cls).parameters if keywords else {}  # type: ignore[arg-type]  # a class has a hash
        if not any(each.kind is each.VAR_KEYWORD for each in known.values()):
            names = [name for name in known if name != "problem"]  # which the run sets
            for name in keywords:
                if name not in known:
                    raise TypeError(
                        f"{cls.__name__}: {name}: no argument of that name{nearest(name, names)}; known are "
                        f"{', '.join(names) or 'none'}"
                    )
        return super().__new__(cls)

"""What programs make by keywords: methods, optimizers, terms and settings, as `FedAvg(batch_size=32)`."""

from __future__ import annotations

import inspect
from functools import lru_cache

from typing_extensions import Self

from mpifed.core.nearest import nearest

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

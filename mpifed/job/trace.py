"""The trace of `[simulated_network]`: a CSV file that says in which rounds clients are there."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.io_errors import open_regular
from mpifed.core.record import Flags, Integers
from mpifed.text import shown

_HEADER = "client,first,last"
_REMEDY = f"its first line is {_HEADER}, and others say that a client, from 0, is there in rounds first to last, from 1"


class Trace(NamedTuple):
    """Who is there when; intervals may overlap."""

    client: Integers  # [m]
    first: Integers  # [m] counted from 0
    last: Integers  # [m]
    sha256: str  # of the file

    def there(self, index: int, clients: int) -> Flags:
        """[N] who is there in round `index`."""
        there = np.zeros(clients, dtype=bool)
        there[self.client[(self.first <= index) & (index <= self.last)]] = True
        return there

    def next_from(self, index: float) -> float:
        """The first round from this one in which an interval begins; infinite where there is none."""
        return float(self.first[self.first >= index].astype(float).min(initial=np.inf))


@lru_cache(maxsize=4)
def trace_of(path: str) -> Trace:
    """The trace in a file, which must not be a link; DataError where it is none, or damaged. It is read once."""
    try:
        if Path(path).is_symlink():
            raise ValueError("is a link, which is not followed")
        with open_regular(path) as file:
            content = file.read()
        header, *lines = content.decode("utf-8-sig").splitlines() or [""]
        if header.strip() != _HEADER or not lines:
            raise ValueError(f"begins with {header[:40]!r}" if lines else "has no client")
        table = np.loadtxt(lines, np.int64, delimiter=",", ndmin=2, comments=None)
        client, first, last = table.T
        wrong = (client < 0) | (first < 1) | (last < first) | (last > 10**8)
        if wrong.any():
            raise ValueError(f"says {','.join(map(str, table[wrong.argmax()]))}")
    except (OSError, ValueError) as error:
        raise DataError(f'[simulated_network] trace = "{path}": {shown(str(error))}; {_REMEDY}') from error
    return Trace(client, first - 1, last - 1, hashlib.sha256(content).hexdigest())

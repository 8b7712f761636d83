"""Groups too small for a sum to hide anybody: a sum of one client's answers is that client's answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.channel import Protection
from mpifed.comm.line import Line
from mpifed.comm.places import Place, names_field
from mpifed.core.errors import TooFewClients, UsageError
from mpifed.core.holdings import Cells
from mpifed.core.round import Round
from mpifed.core.text import counted


def fewest(place: Place, cells: Cells, present: NDArray[np.bool_]) -> int:
    """The least number of the clients present who fill a place of a field; 0 where nobody fills any.

    Rows are told to those alone who hold them: what one client fills, only that client hears, and it does not count.
    """
    if place.field.sender is not None:
        return int(present[place.field.sender])
    held = cells.along(place.field)
    if held is None:
        return int(present.sum())
    filled = held.held_by(present)
    filled = filled[filled > (place.field.rows is not None)]
    return int(filled.min(initial=len(present))) if len(filled) else 0


def small(line: Line, cells: Cells, protection: Protection, present: NDArray[np.bool_]) -> Iterator[tuple[str, int]]:
    """(field, clients) of each field that would show values of fewer clients than the job wants, and does not allow."""
    for place in line.sum.places:
        count = fewest(place, cells, present)
        if 0 < count < protection.min_clients and not any(names_field(name, place.name) for name in protection.allow):
            yield place.name, count


def _allowing(fields: Iterable[str]) -> str:
    """The key that lets values of single clients in these fields be opened."""
    names = ", ".join(f'"{name}"' for name in dict.fromkeys(field.partition(".")[0] for field in fields))
    return f"[aggregation] allow = [{names}]"


def check_groups(lines: list[Line], cells: Cells, protection: Protection) -> None:
    """Refuse a job whose sums would be of too few clients even with all of them present.

    Raises
    ------
    UsageError
        naming the fields.
    """
    everybody = np.ones(len(cells.rows.groups), dtype=bool)
    found = {name: count for line in lines for name, count in small(line, cells, protection, everybody)}
    if found:
        listed = ", ".join(f"{name} ({count})" for name, count in found.items())
        raise UsageError(
            f"[aggregation] min_clients = {protection.min_clients}: these fields have values of fewer clients, which "
            f"no channel can hide from whoever receives the sum: {listed}; if they may be known, allow them by name: "
            f"{_allowing(found)}"
        )


def check_rounds(lines: list[Line], cells: Cells, protection: Protection, rounds: Iterable[Round]) -> None:
    """Refuse a job in some of whose rounds a sum would be of too few of the clients present.

    Raises
    ------
    UsageError
        naming all such fields, each with its first round.
    """
    found: dict[str, int] = {}
    cut = [line for line in lines if any(cells.along(place.field) is not None for place in line.sum.places)]
    for now in rounds if cut else ():  # elsewhere all who are present fill every place
        for line in cut:
            back = now.returning if line.exchange.returning else None
            for name, _ in small(line, cells, protection, now.present if back is None else back):
                found.setdefault(name, int(now.index))
    if found:
        listed = ", ".join(f"{name} (first in round {index})" for name, index in found.items())
        raise UsageError(
            f"[aggregation] min_clients = {protection.min_clients}: in some rounds fewer of the clients who take part "
            f"fill values of {listed}, and their sum would not be opened; let more clients take part in a round, or if "
            f"single clients' values may be known, allow them by name: {_allowing(found)}"
        )


def refuse_small(line: Line, cells: Cells, protection: Protection, now: Round) -> None:
    """Refuse to open a sum of too few answers. Alike on all ranks.

    Raises
    ------
    TooFewClients
        naming the field.
    """
    for name, count in small(line, cells, protection, now.present):
        raise TooFewClients(
            f"{name}: round {now.index} has answers of {counted(count, 'client')}, and [aggregation] min_clients = "
            f"{protection.min_clients}: their sum is not opened; let more clients take part in a round, or, if the "
            f"value of one may be known, allow it by name: {_allowing([name])}",
            agreed=True,
        )

"""Groups of clients too small for a sum to hide anybody: the sum of a single upload is that upload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.channel import Protection
from mpifed.comm.exchange_plan import ExchangePlan
from mpifed.comm.message_layout import Place, names_field
from mpifed.core.errors import TooFewClients, UsageError
from mpifed.core.holdings import Cells
from mpifed.core.round import Round
from mpifed.core.text import counted


def fewest(place: Place, cells: Cells, present: NDArray[np.bool_]) -> int:
    """Smallest number of participating clients behind any entry of a field; 0 where nobody fills one.

    Sums over rows are sent only to the clients that hold those rows: an entry that a single client fills returns to
    that client alone, and does not count.
    """
    if place.field.sender is not None:
        return int(present[place.field.sender])
    held = cells.along(place.field)
    if held is None:
        return int(present.sum())
    filled = held.held_by(present)
    filled = filled[filled > (place.field.rows is not None)]
    return int(filled.min(initial=len(present))) if len(filled) else 0


def small(
    plan: ExchangePlan, cells: Cells, protection: Protection, present: NDArray[np.bool_]
) -> Iterator[tuple[str, int]]:
    """(field, clients) of each field with sums of fewer clients than `min_clients`, unless the job allows it."""
    for place in plan.sum.places:
        count = fewest(place, cells, present)
        if 0 < count < protection.min_clients and not any(names_field(name, place.name) for name in protection.allow):
            yield place.name, count


def _allowing(fields: Iterable[str]) -> str:
    """The setting under which values of single clients in these fields may be opened."""
    names = ", ".join(f'"{name}"' for name in dict.fromkeys(field.partition(".")[0] for field in fields))
    return f"[aggregation] allow = [{names}]"


def check_groups(plans: list[ExchangePlan], cells: Cells, protection: Protection) -> None:
    """UsageError, naming fields, for a job whose sums would be over too few clients even if all participate."""
    everybody = np.ones(len(cells.rows.groups), dtype=bool)
    too_small = {name: count for plan in plans for name, count in small(plan, cells, protection, everybody)}
    if too_small:
        listed = ", ".join(f"{name} ({count})" for name, count in too_small.items())
        raise UsageError(
            f"[aggregation] min_clients = {protection.min_clients}: these fields have values of fewer clients, which "
            f"no channel can hide from the receiver of the sum: {listed}; if they may be known, allow them by name: "
            f"{_allowing(too_small)}"
        )


def check_rounds(plans: list[ExchangePlan], cells: Cells, protection: Protection, rounds: Iterable[Round]) -> None:
    """UsageError, naming fields and first rounds, where a sum would be over too few participating clients."""
    first_round: dict[str, int] = {}
    partial = [plan for plan in plans if any(cells.along(place.field) is not None for place in plan.sum.places)]
    for now in rounds if partial else ():  # elsewhere all participating clients fill every entry
        for plan in partial:
            returning = now.returning if plan.exchange.returning else None
            for name, _ in small(plan, cells, protection, now.present if returning is None else returning):
                first_round.setdefault(name, int(now.index))
    if first_round:
        listed = ", ".join(f"{name} (first in round {index})" for name, index in first_round.items())
        raise UsageError(
            f"[aggregation] min_clients = {protection.min_clients}: in these rounds fewer participating clients "
            f"fill values of {listed}, and their sum would not be opened; let more clients participate, or if "
            f"single clients' values may be known, allow them by name: {_allowing(first_round)}"
        )


def refuse_small(plan: ExchangePlan, cells: Cells, protection: Protection, now: Round) -> None:
    """Refuse to open a sum of too few uploads: on all ranks alike, TooFewClients naming the field."""
    for name, count in small(plan, cells, protection, now.present):
        raise TooFewClients(
            f"{name}: round {now.index} has uploads of {counted(count, 'client')}, and [aggregation] min_clients = "
            f"{protection.min_clients}: their sum is not opened; let more clients participate in a round, or, if the "
            f"value of a single client may be known, allow it by name: {_allowing([name])}",
            agreed=True,
        )

"""Names of earlier versions: what each is called now.

Old keys are refused with the new ones, so that no job silently changes its meaning; CHANGELOG.md lists them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mpifed.core.tables import ReadOnlyTable
from mpifed.core.text import shown
from mpifed.job.loading import where_is


class Renamed(NamedTuple):
    """A key, or a table, of earlier versions."""

    table: str
    key: str | None  # None: the table itself
    now: str
    algorithms: tuple[str, ...] = ()  # only of these; all where empty


_RATE = "learning_rate = a number, or {initial = a, exponent = b} for the old [a, b]"
_OF_CLIENTS = ("fedavg", "fedprox", "scaffold", "hybrid-fedavg", "hyfem")
RENAMED = (
    Renamed("objective", None, "[model]"),
    Renamed("sum", None, "[aggregation]"),
    Renamed("network", None, "[simulated_network]"),
    Renamed("model", "penalty", "l2"),
    Renamed("model", "concave", "nonconvex_penalty"),
    Renamed("aggregation", "numbers", "arithmetic"),
    Renamed("aggregation", "channel", "security"),
    Renamed("record", "every", "evaluate_every"),
    Renamed("record", "rows", "evaluate_rows"),
    Renamed("privacy", "model", "trust"),
    Renamed("algorithm", "batch", "batch_size"),
    Renamed("algorithm", "step", f"[client_optimizer] {_RATE}", _OF_CLIENTS),
    Renamed("algorithm", "step", f"[server_optimizer] {_RATE}", ("vertical-sgd",)),
    Renamed("algorithm", "step", "local_rule", ("fedpdm",)),
    Renamed("algorithm", "step_size", f"[client_optimizer] {_RATE}", ("fedpdm",)),
    Renamed("algorithm", "momentum", "[server_optimizer] momentum", ("fedavg", "fedprox")),
    Renamed("algorithm", "server_step", "[server_optimizer] learning_rate", ("scaffold",)),
)
# values: (table, key, old) -> new
VALUES = {
    ("model", "name", "network"): "mlp",
    ("algorithm", "name", "ssca-horizontal"): "ssca",
    ("algorithm", "name", "ssca-vertical"): "ssca",
    ("compute", "device", "cuda"): "gpu",
}
TABLES = {entry.table: entry.now.strip("[]") for entry in RENAMED if entry.key is None}


def old_words(table: ReadOnlyTable) -> Iterator[str]:
    """A message for each name of an earlier version in a job."""
    algorithm = table.get("algorithm")
    name = algorithm.get("name") if isinstance(algorithm, Mapping) else None
    for place, part in table.items():
        if place in TABLES and (isinstance(part, (Mapping, list))):
            yield f"[{place}]: is now [{TABLES[place]}]"
        if not isinstance(part, Mapping):
            continue
        here = TABLES.get(place, place)
        for key, value in part.items():
            for entry in RENAMED:
                if (entry.table, entry.key) == (here, key) and (not entry.algorithms or name in entry.algorithms):
                    yield f"{where_is((place, key))}: is now {entry.now}"
            if isinstance(value, str) and (new := VALUES.get((here, key, value))):
                yield f'{where_is((place, key))} = "{shown(value)}": is now "{new}"'

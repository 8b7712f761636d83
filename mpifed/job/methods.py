"""Errors in a job whose method was changed by `--set`: settings of other methods, reported together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mpifed.algorithms import ALGORITHMS
from mpifed.core.tables import ReadOnlyTable
from mpifed.job.components import optimizers, wrong_with
from mpifed.maths.optimizers import OPTIMIZERS


def unconstrained(name: str) -> str:
    """The error of an algorithm that takes neither constraints nor another objective."""
    return (
        f'[algorithm] name = "{name}": takes no [[constraint]] and no [minimize] but the mean loss; take ssca, or '
        "leave them out, as by --set 'constraint=[]' --set 'minimize={name=\"loss\"}'"
    )


def wrong_optimizers(table: ReadOnlyTable) -> list[str]:
    """Errors of [client_optimizer] and [server_optimizer], which not every algorithm takes."""
    wrong, algorithm = list[str](), table["algorithm"]
    taken = optimizers(algorithm)
    for name in OPTIMIZERS:
        given = table.get(name) or {}
        if name in taken:
            wrong += wrong_with(taken[name], given) if isinstance(given, Mapping) else []
        elif given:
            wrong.append(
                f'[{name}]: [algorithm] name = "{algorithm["name"]}" takes none; leave the table out, as by --set '
                f"{name}={{}}"
            )
    return wrong


def wrong_limits(table: ReadOnlyTable) -> list[str]:
    """The error of [[constraint]] or [minimize] with one of mpifed's methods that takes neither."""
    name, minimize, limits = table["algorithm"].get("name"), table.get("minimize"), table.get("constraint")
    if name not in ALGORITHMS:
        return []
    kind = cast("Any", ALGORITHMS[name])  # of a class, which has no properties yet
    other = isinstance(minimize, Mapping) and minimize.get("name", "loss") != "loss"
    limited = isinstance(limits, list) and bool(limits)
    return [unconstrained(name)] if (limited or other) and kind.constrained is not True else []


def wrong_beside(table: ReadOnlyTable) -> list[str]:
    """Further errors of a job whose [algorithm] has keys of another method than it names, with a hint."""
    algorithm = table.get("algorithm")
    if not isinstance(algorithm, Mapping) or not isinstance(name := algorithm.get("name"), str):
        return []
    if name not in ALGORITHMS or not any(key in algorithm for key in _keys_of_others(name)):
        return []
    hint = f"to change the method, set the whole table: --set 'algorithm={{name=\"{name}\", batch_size=...}}'"
    return [*wrong_optimizers(table), *wrong_limits(table), hint]


def _keys_of_others(name: str) -> set[str]:
    """The keys that only other algorithms have."""
    fields, others = set(ALGORITHMS[name].__dataclass_fields__), set[str]()
    for kind in ALGORITHMS.values():
        others |= set(kind.__dataclass_fields__)
    return others - fields

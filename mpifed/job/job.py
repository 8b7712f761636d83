"""Jobs: a TOML file, checked as a whole before any data is read.

A table's keys are the fields of a class. `[model]` and `[algorithm]` name theirs, one of the package's or the
user's own as "my_module:MyClass"; it is a dataclass whose annotations are checked. All errors are reported at once.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import tomli_w
from pydantic import ValidationError

from mpifed.core.algorithm import Algorithm, wrong_exchanges
from mpifed.core.contract import own_module
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Problem
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.job.combinations import wrong_beside, wrong_fit, wrong_limits, wrong_optimizers, wrong_together
from mpifed.job.components import (
    ALGORITHM,
    MINIMIZE,
    MODEL,
    REGULARIZER,
    Kind,
    constraint,
    make,
    make_algorithm,
    message,
    observer,
    optimizers,
    with_intercepts,
    written_out,
    wrong_with,
)
from mpifed.job.loading import listed_errors, wrong_values
from mpifed.job.loading import put_key as put_key
from mpifed.job.loading import read_table as read_table
from mpifed.job.loading import set_value as set_value
from mpifed.job.schema import JobTable, LimitKeys, ModelKeys
from mpifed.job.settings import Settings, split_constraint
from mpifed.maths.optimizers import Watched


class Job(Settings):
    """All settings of one run."""

    @classmethod
    def check(cls, table: ReadOnlyTable, source: str = "job") -> Job:
        """The job that `table` describes.

        Raises
        ------
        UsageError
            listing every unknown key, wrong type and missing value.
        """
        if wrong := list(wrong_values(table)):
            raise UsageError(listed_errors(source, wrong))
        try:
            job = cls.model_validate_json(json.dumps(table, default=str))
        except ValidationError as error:
            wrong += [message(entry, list(entry["loc"]), _known(entry["loc"])) for entry in error.errors()]
        for kind, part in _named_parts(table):
            if isinstance(part, Mapping):
                wrong += wrong_with(kind, part) + _wrong_beside(kind, part)
        if wrong:
            wrong += wrong_beside(table)
        elif wrong := wrong_optimizers(table) + wrong_together(job):
            wrong += wrong_limits(table)
        if wrong:
            raise UsageError(listed_errors(source, wrong))
        return job

    @classmethod
    def read(cls, path: Path, changes: Iterable[str] = ()) -> Job:
        """The job in a TOML file, with `table.key=value` changes applied."""
        return cls.check(read_table(path, changes), str(path))

    def table(self) -> Table:
        """The tables of the job as plain values, with all defaults."""
        table: Table = self.model_dump(exclude_none=True)
        table["server"]["dedicated"] = self.dedicated
        table["aggregation"] = self.aggregation.model_copy(update={"security": self.channel}).model_dump(
            exclude_none=True
        )
        table["model"] = written_out(MODEL, with_intercepts(self.model, self.algorithm))
        table["minimize"] = written_out(MINIMIZE, self.minimize)
        table["algorithm"] = written_out(ALGORITHM, self.algorithm)
        for name, kind in optimizers(self.algorithm).items():
            table[name] = written_out(kind, getattr(self, name) or {})
        if self.regularizer is not None:
            table["regularizer"] = written_out(REGULARIZER, self.regularizer)
        table["constraint"] = [
            {**written_out(constraint(number), term), **keys.model_dump()}
            for number, (term, keys) in enumerate(map(split_constraint, self.constraint), 1)
        ]
        observers = [written_out(observer(number), part) for number, part in enumerate(self.observe, 1)]
        table["observe"] = observers
        if not observers:  # as in jobs of earlier versions
            del table["observe"]
        return {name: table[name] for name in type(self).model_fields if name in table}  # always in one order

    def text(self) -> str:
        """The job as TOML, with all defaults."""
        return tomli_w.dumps(self.table())

    def make_algorithm(self, problem: Problem) -> Algorithm:
        """The algorithm for a problem, which may still lack the noise multiplier that is to be calibrated.

        Raises
        ------
        UsageError
            listing what in the job does not fit the data.
        """
        given = {name: make(kind, getattr(self, name) or {}) for name, kind in optimizers(self.algorithm).items()}
        algorithm: Algorithm = make_algorithm(self.algorithm, problem, given)
        own = own_module(name := self.algorithm["name"]) is not None
        if own and (wrong := list(wrong_exchanges(algorithm))):
            raise UsageError("\n".join(f'[algorithm] name = "{name}": {error}' for error in wrong))
        if wrong := wrong_fit(self, algorithm):
            raise UsageError("\n".join(["job and data do not fit together", *(f"  {line}" for line in wrong)]))
        watched = {key: each for key, part in given.items() if (each := Watched(part)).unread}
        if own and watched:  # checks may have read what the method does not
            algorithm = make_algorithm(self.algorithm, problem, given | watched)
        return algorithm


def _named_parts(table: ReadOnlyTable) -> Iterator[tuple[Kind[Any], object]]:  # of any kind
    """The tables of a job that name a class, as they came."""
    yield from ((kind, table.get(kind.table)) for kind in (MODEL, MINIMIZE, ALGORITHM, REGULARIZER))
    for name, numbered in (("constraint", constraint), ("observe", observer)):
        given = table.get(name)
        yield from ((numbered(number), part) for number, part in enumerate(given if isinstance(given, list) else [], 1))


def _wrong_beside(kind: Kind[Any], table: ReadOnlyTable) -> list[str]:  # of any kind
    """The errors of a table's keys that are not its part's."""
    given = {key: value for key, value in table.items() if key in kind.beside}
    keys: type[JobTable] = ModelKeys if kind is MODEL else LimitKeys
    if not kind.beside:
        return []
    try:
        keys.model_validate_json(json.dumps(given, default=str))
    except ValidationError as error:
        return [message(entry, [kind.table, *entry["loc"]], list(kind.beside)) for entry in error.errors()]
    return []


def _known(place: Sequence[int | str]) -> list[str]:
    """The keys of the table that `place` is in."""
    table: Any = Job  # classes of pydantic and dataclasses in turn
    for part in place[:-1]:
        annotated = table.model_fields[part].annotation if part in getattr(table, "model_fields", {}) else None
        table = next((kind for kind in get_args(annotated) if kind is not type(None)), annotated)
    if dataclasses.is_dataclass(table):
        return [field.name for field in dataclasses.fields(table)]
    return list(getattr(table, "model_fields", {}))

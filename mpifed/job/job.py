"""Jobs: a TOML file, or objects, checked as a whole before any data is read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from typing_extensions import Self

from mpifed.algorithms.algorithm import Algorithm
from mpifed.contract import own_module
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Exchange
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.job.combinations import wrong_fit, wrong_together
from mpifed.job.reading import listed_errors, refuse
from mpifed.job.reading import put_key as put_key
from mpifed.job.reading import read_table as read_table
from mpifed.job.reading import set_value as set_value
from mpifed.job.schema import ALGORITHM, CLIENT, SERVER, JobSettings, Security
from mpifed.job.settings import Wrong, errors_of, hints_of, table_of
from mpifed.maths.adaptive import OPTIMIZERS
from mpifed.maths.problem import Problem
from mpifed.text import nearest

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@dataclass(frozen=True, kw_only=True)
class Job(JobSettings):
    """All settings of one run."""

    @classmethod
    def check(cls, table: ReadOnlyTable, source: str = "job") -> Job:
        """The job that `table` describes.

        Raises
        ------
        Wrong
            listing every unknown key, wrong type and missing value.
        UsageError
            listing what does not go together, where all values are right.
        """
        from pydantic import ValidationError  # here and below: slow to import, and rank 0 alone needs it

        refuse(table, source)
        algorithm = None
        with suppress(Exception):  # which [algorithm] then reports
            named = ALGORITHM.part(table["algorithm"]["name"])
            algorithm = hints_of(named) and named
        given = {**dict.fromkeys(OPTIMIZERS), "minimize": {"name": "loss"}, **table}  # whose defaults are read too
        try:
            job = adapter().validate_json(json.dumps(given, default=str), context=algorithm)
        except ValidationError as error:
            raise Wrong.of(source, list(errors_of(error, cls, given))) from None
        if wrong := wrong_together(job):
            raise UsageError(listed_errors(source, wrong))
        return job

    @classmethod
    def read(cls, path: Path, changes: Iterable[str] = ()) -> Job:
        """The job in a TOML file, with `table.key=value` changes applied."""
        return cls.check(read_table(path, changes), str(path))

    def table(self) -> Table:
        """The tables of the job as plain values, with all defaults."""
        table: Table = table_of(self)
        table["server"]["dedicated"] = self.dedicated
        security = cast("Security", self.channel)
        table["aggregation"] = table_of(replace(self.aggregation, security=security))
        if not self.observe:  # as in jobs of earlier versions
            del table["observe"]
        return table

    def resumed(self, began: ReadOnlyTable) -> Self:
        """The job with the number of clients in a block that it `began` with, where `auto` leaves it open."""
        block = began.get("data", {}).get("block", self.data.block)
        return replace(self, data=replace(self.data, block=block)) if self.data.block == "auto" else self

    def text(self) -> str:
        """The job as TOML, with all defaults."""
        import tomli_w

        return tomli_w.dumps(self.table())

    def make_algorithm(self, problem: Problem) -> Algorithm:
        """The algorithm for a problem, which may still lack the noise multiplier that is to be calibrated.

        Raises
        ------
        UsageError
            listing what in the job does not fit the data.
        """
        given = {}
        for marked, table in ((CLIENT, self.client_optimizer), (SERVER, self.server_optimizer)):
            if table and (kind := marked.of(self.method)):
                given[marked.table] = kind.make(table)
        algorithm = ALGORITHM.make(self.algorithm, problem.split, problem=problem, **given)
        own = own_module(name := self.algorithm["name"]) is not None
        if own and (wrong := list(wrong_exchanges(algorithm))):
            raise UsageError("\n".join(f'[algorithm] name = "{name}": {error}' for error in wrong))
        if wrong := wrong_fit(self, algorithm):
            raise UsageError("\n".join(["job and data do not fit together", *(f"  {line}" for line in wrong)]))
        watched = {key: each for key, part in given.items() if (each := Watched(part)).unread}
        if own and watched:  # checks may have read what the method does not
            return ALGORITHM.make(self.algorithm, problem.split, problem=problem, **{**given, **watched})
        return algorithm


class Watched:
    """An optimizer, and which of its settings nobody has read yet: of those that differ from their defaults."""

    def __init__(self, optimizer: object) -> None:
        self.optimizer = optimizer
        self.unread = {key for key, value in vars(optimizer).items() if value != getattr(type(optimizer), key, value)}

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # as of copying, which asks before there is an optimizer
            raise AttributeError(name)
        self.unread.discard("learning_rate" if name == "at" else name)
        if name in ("step", "direction"):  # which read all
            self.unread.clear()
        return getattr(self.optimizer, name)


def wrong_exchanges(algorithm: Algorithm) -> Iterator[str]:
    """Errors in the exchanges of an algorithm, one message each."""
    for where in ("setup", "exchanges"):
        try:
            given = getattr(algorithm, where)
        except AttributeError as error:
            if error.obj is algorithm:
                near = nearest(str(error.name), dir(algorithm))
                yield f"{where}: {type(algorithm).__name__} has no {error.name}{near}"
            continue
        except Exception:  # as of data that do not fit, which `check` may say; else it comes again in the run
            continue
        if not (isinstance(given, tuple | list) and all(isinstance(exchange, Exchange) for exchange in given)):
            yield f"{where}: expected a property that is a tuple of Exchange; came {type(given).__name__}"


@cache
def adapter() -> TypeAdapter[Job]:
    """What reads a job, and has the JSON Schema of its files."""
    from pydantic import TypeAdapter

    return TypeAdapter(Job)

"""Jobs: a TOML file, checked as a whole before any data is read.

A table's keys are the fields of one class. `[objective]` and `[algorithm]` name theirs, one of the package's or the
user's own as "my_module:MyClass"; it is a dataclass whose annotations are checked. Everything that is wrong is
reported at once.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from mpifed.algorithms import ALGORITHMS
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Algorithm, Problem
from mpifed.maths.objectives import OBJECTIVES, Objective

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DataTable(_Table):
    """`[data]`"""

    path: str
    block: Positive = 1  # clients computed together
    memory_gib: Annotated[float, Field(ge=0)] = 4.0  # shards kept in memory, per rank; the rest is streamed
    verify: bool = True  # compare the shards' checksums at the start


class ParticipationTable(_Table):
    """`[participation]`"""

    clients_per_round: Positive | None = None  # all when absent


class SumTable(_Table):
    """`[sum]`"""

    numbers: Literal["exact", "float"] = "exact"
    channel: Literal["plain"] = "plain"
    bounds: dict[str, Annotated[float, Field(gt=0)]] = {}  # by "exchange.field"
    scales: dict[str, Annotated[float, Field(gt=0)]] = {}


class RecordTable(_Table):
    """`[record]`"""

    every: NotNegative = 10  # rounds between measurements; 0: none at all
    checkpoint_every: NotNegative = 100  # rounds between checkpoints; 0: only when interrupted, and at the end


class ServerTable(_Table):
    """`[server]`"""

    dedicated: bool = False  # rank 0 hosts no clients


class ComputeTable(_Table):
    """`[compute]`"""

    device: Literal["auto", "cpu"] = "auto"
    dtype: Literal["float32", "float64"] = "float32"


class StopTable(_Table):
    """`[stop]`"""

    seconds: Annotated[float, Field(gt=0)] | None = None  # of training, off-clock work left out


class SweepTable(BaseModel):
    """`[sweep]`: "table.key" = [values], and seeds = how many."""

    model_config = ConfigDict(extra="allow", frozen=True)

    seeds: Positive = 1


class Job(_Table):
    """All settings of one run."""

    name: Annotated[str, Field(min_length=1)]
    rounds: Positive
    data: DataTable
    objective: dict[str, Any]
    algorithm: dict[str, Any]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    participation: ParticipationTable = ParticipationTable()
    sum: SumTable = SumTable()
    record: RecordTable = RecordTable()
    server: ServerTable = ServerTable()
    compute: ComputeTable = ComputeTable()
    stop: StopTable = StopTable()

    @classmethod
    def check(cls, table: Mapping[str, Any], source: str = "job") -> Job:
        """The job that `table` describes.

        Raises
        ------
        UsageError
            listing every unknown key, wrong type and missing value.
        """
        wrong: list[str] = []
        job: Job | None = None
        try:
            job = cls.model_validate_json(json.dumps(table))
        except ValidationError as error:
            wrong += _messages(error, cls)
        for name, known, fixed in (("objective", OBJECTIVES, ()), ("algorithm", ALGORITHMS, ("problem",))):
            part = table.get(name)
            if isinstance(part, Mapping):
                wrong += _check_part(name, part, known, fixed)
        if wrong or job is None:
            raise UsageError("\n".join([f"{source}: {len(wrong)} thing(s) to mend", *(f"  {line}" for line in wrong)]))
        return job

    @classmethod
    def read(cls, path: Path, changes: Iterable[str] = ()) -> Job:
        """The job in a TOML file, with `table.key=value` changes applied."""
        return cls.check(read_table(path, changes), str(path))

    def table(self) -> dict[str, Any]:
        """Plain values, all defaults written out."""
        table = self.model_dump(exclude_none=True)
        table["objective"] = _written(self.objective, OBJECTIVES, ())
        table["algorithm"] = _written(self.algorithm, ALGORITHMS, ("problem",))
        return table

    def text(self) -> str:
        """The job as TOML, all defaults written out."""
        return tomli_w.dumps(self.table())

    def make_objective(self) -> Objective:
        """The objective."""
        return _make("objective", self.objective, OBJECTIVES, {})

    def make_algorithm(self, problem: Problem) -> Algorithm:
        """The algorithm for a problem.

        Raises
        ------
        UsageError
            listing what does not fit between job and data.
        """
        algorithm: Algorithm = _make("algorithm", self.algorithm, ALGORITHMS, {"problem": problem})
        wrong = list(algorithm.check())
        per_round = self.participation.clients_per_round
        if per_round is not None and per_round > problem.clients:
            wrong.append(
                f"[participation] clients_per_round = {per_round}: {self.data.path} has {problem.clients} clients"
            )
        if wrong:
            raise UsageError("\n".join(["job and data do not fit together", *(f"  {line}" for line in wrong)]))
        return algorithm


def read_table(path: Path, changes: Iterable[str] = ()) -> dict[str, Any]:
    """The tables of a TOML file, with `table.key=value` changes applied."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); give the path of a job file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a TOML file: {error}") from error
    for change in changes:
        set_value(table, change)
    return table


def set_value(table: dict[str, Any], change: str) -> None:
    """Apply one `table.key=value`; the value is TOML, or a bare string."""
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set {change}: expected table.key=value, for instance --set algorithm.batch=100")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    put_key(table, key.strip(), value)


def put_key(table: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key."""
    *path, last = key.split(".")
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise UsageError(f"{key}: {part} is a value and no table")
    table[last] = value


def _class(table: str, part: Mapping[str, Any], known: Mapping[str, type]) -> type:
    name = part.get("name")
    if not isinstance(name, str):
        raise UsageError(f"[{table}] name: missing; known are {', '.join(known)}, or your own as \"my_module:MyClass\"")
    if name in known:
        return known[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise UsageError(f'[{table}] name = "{name}": known are {", ".join(known)}, or your own as "my_module:MyClass"')
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module in the folder where the job is started
    try:
        found: type = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f'[{table}] name = "{name}": {error}; the module must be importable from the folder where you start'
        ) from error
    if not dataclasses.is_dataclass(found):
        raise UsageError(f'[{table}] name = "{name}": must be a dataclass, whose fields are the keys of the table')
    return found


def _values(part: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key != "name"}


def _adapted(kind: type, values: Mapping[str, Any], fixed: Iterable[str]) -> dict[str, Any]:
    """The values in the types that the dataclass annotates; raises ValidationError."""
    hints = {field.name: field for field in dataclasses.fields(kind) if field.name not in fixed}
    types = _type_hints(kind)
    model = {
        name: (types[name], ... if _required(field) else _default(field)) for name, field in hints.items()
    }
    from pydantic import create_model

    checked = create_model(kind.__name__, __config__=ConfigDict(extra="forbid", strict=True), **model)  # type: ignore[call-overload]
    parsed = checked.model_validate_json(json.dumps(values))
    return {name: getattr(parsed, name) for name in hints}


def _type_hints(kind: type) -> dict[str, Any]:
    from typing import get_type_hints

    return get_type_hints(kind, include_extras=True)


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[misc]


def _check_part(table: str, part: Mapping[str, Any], known: Mapping[str, type], fixed: Iterable[str]) -> list[str]:
    try:
        kind = _class(table, part, known)
        _adapted(kind, _values(part), fixed)
    except UsageError as error:
        return [str(error)]
    except ValidationError as error:
        return _messages(error, None, table, [f.name for f in dataclasses.fields(kind) if f.name not in fixed])
    return []


def _make(table: str, part: Mapping[str, Any], known: Mapping[str, type], fixed: Mapping[str, Any]) -> Any:
    kind = _class(table, part, known)
    return kind(**fixed, **_adapted(kind, _values(part), fixed))


def _written(part: Mapping[str, Any], known: Mapping[str, type], fixed: Iterable[str]) -> dict[str, Any]:
    kind = _class("", part, known)
    values = TypeAdapter(dict[str, Any]).dump_python(_adapted(kind, _values(part), fixed), exclude_none=True)
    return {"name": part["name"], **{key: value for key, value in values.items() if value is not None}}


def _messages(error: ValidationError, kind: type[BaseModel] | None, table: str = "", keys: Iterable[str] = ()) -> list[str]:
    """One line for each thing that pydantic found."""
    lines = []
    for found in error.errors():
        place = [str(part) for part in found["loc"]]
        where = f"[{table}] {'.'.join(place)}" if table else _where(place)
        if found["type"] == "extra_forbidden":
            known = list(keys) or _known(kind, place[:-1])
            lines.append(f"{where}: unknown key; known are {', '.join(known)}")
        elif found["type"] == "missing":
            lines.append(f"{where}: missing")
        else:
            lines.append(f"{where} = {json.dumps(found['input'], default=str)}: {found['msg']}")
    return lines


def _where(place: list[str]) -> str:
    return f"[{place[0]}] {'.'.join(place[1:])}" if len(place) > 1 else place[0]


def _known(kind: type[BaseModel] | None, place: list[str]) -> list[str]:
    for part in place:
        if kind is not None and part in kind.model_fields:
            inner = kind.model_fields[part].annotation
            kind = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None
    return list(kind.model_fields) if kind is not None else []

"""What a table, key, method or model of a job means, from the classes that read it; for `mpifed explain`, documents."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import DataclassSchema, ModelSchema, NullableSchema

from mpifed.algorithms.algorithm import Algorithm
from mpifed.contract import attribute_docs, fields_of, own_class, own_module
from mpifed.core.errors import UsageError
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.files.columns import column_of
from mpifed.files.columns import shown as shown_columns
from mpifed.files.ends import ENDS
from mpifed.job.job import Job, adapter
from mpifed.job.schema import LimitKeys, ModelKeys
from mpifed.job.settings import REGISTRIES, key_of, keys_of, made_of, tables_in
from mpifed.job.sweep import Tune
from mpifed.maths.compression import Compression
from mpifed.maths.objectives import Objective
from mpifed.maths.optimizers import ClientOptimizer, ServerOptimizer
from mpifed.maths.regularizers import Regularizer
from mpifed.maths.schedules import SCHEDULES
from mpifed.maths.terms import Term
from mpifed.observers import Observer
from mpifed.text import nearest, shown

_MANY = 10**6  # from which upper bounds are left out of the help
_BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
_TYPES = {
    "integer": "an integer", "number": "a number", "boolean": "true or false", "string": "text",
    "array": "a list", "object": "a table",
}  # fmt: skip
_KINDS: dict[type, str] = {
    Algorithm: "algorithm", Objective: "model", Term: "term", Regularizer: "regularizer", Observer: "observer",
    ClientOptimizer: "client optimizer", ServerOptimizer: "server optimizer", Compression: "compressor",
}  # fmt: skip
# the tables where what is of a kind stands, or what else it is asked for by; others by the name of their kind
_PLACES = {
    "term": ("constraint", "minimize"), "observer": ("observe",), "column": ("history", "columns"),
    "compressor": ("compression",),
    "client optimizer": ("client_optimizer",), "server optimizer": ("server_optimizer",),
}  # fmt: skip
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\([^()]*\)")  # its text may have brackets
_SWEEP = """Many runs in one file: a run for each combination of the values that are listed, each with all seeds.

Any other key is that of a list of values, as "algorithm.batch_size" = [10, 100]. Tables in a list, those of methods
too, may each have a `label`, by which tables and figures call the runs, as
"algorithm" = [{label = "A", name = "fedavg"}, {label = "B", name = "scaffold"}]."""


class Key(NamedTuple):
    """A key of a table."""

    name: str
    type: str
    default: str  # empty where it must be given
    meaning: str


_SWEEP_KEYS = (
    Key("seeds", "an integer > 0", "1", "How many seeds each combination is run with: `seed`, `seed` + 1 and so on."),
    Key("methods", "a list of tables", "absent", "Whole tables that go together, as algorithm and client_optimizer."),
)


class Entry(NamedTuple):
    """What has a name in a job: a table, an algorithm, a model, ..."""

    kind: str  # "table", "algorithm", "model", ...
    name: str
    text: str
    keys: tuple[Key, ...] = ()
    python: str = ""  # the name of its class

    @property
    def places(self) -> tuple[str, ...]:
        """The tables where it stands."""
        return (self.name,) if self.kind in ("job", "table") else _PLACES.get(self.kind, (self.kind,))


def entries() -> list[Entry]:
    """All tables of a job and all that they can name, the columns of histories, and the exit codes."""
    tables = tables_in(Job)
    job = entry_of("job", "job", Job)
    listed = [job._replace(keys=tuple(key for key in job.keys if key.name not in tables))]
    tables |= {"model": ModelKeys, "constraint": LimitKeys}
    listed += [entry_of("table", name, table) for name, table in tables.items()]
    listed += [Entry("table", "sweep", _SWEEP, _SWEEP_KEYS), entry_of("table", "tune", Tune)]
    for base, known in REGISTRIES.items():
        listed += [entry_of(_KINDS[base], name, part) for name, part in known.items()]
    listed += [entry_of("schedule", name, kind) for name, kind in SCHEDULES.items()]
    listed += [Entry("column", column.name, f"{column.label}: {column.meaning}") for column in shown_columns("history")]
    return listed + [Entry("exit code", str(end.code), end.meaning) for end in ENDS]


def entry_of(kind: str, name: str, part: type) -> Entry:
    """The entry of a class."""
    schema = keys_of(part).model_json_schema(schema_generator=_Documented)  # type: ignore[arg-type]  # classes hash
    about, required = schema.get("$defs", {}), schema.get("required", ())
    keys = (
        Key(key, words(value, about), _default(value, key in required), value["description"])
        for key, value in schema["properties"].items()
        if key not in getattr(part, "refuses", ())
    )
    return Entry(kind, name, _text(part), tuple(keys), part.__name__)


def _own_entry(name: str) -> Entry:
    """The entry of a class "module:Class", which is imported."""
    part = own_class(name, object, name)
    base = next((base for base in _KINDS if issubclass(part, base)), Term)
    return entry_of(_KINDS[base], name, own_class(name, base, name))


# --- answers ----------------------------------------------------------------------------------------------------------


def explained(name: str, more: Sequence[Entry] = ()) -> str:
    """What `name` means: an entry, `table.key`, a key wherever it stands, an own class; all names where it is empty.

    Parameters
    ----------
    more : entries that only the command line knows

    Raises
    ------
    UsageError
        when nothing has that name.
    """
    if own_module(name) is not None:
        return "\n".join(_lines(_own_entry(name)))
    known = [*entries(), *more]
    if not name:
        kinds = {entry.kind: [other.name for other in known if other.kind == entry.kind] for entry in known}
        return "\n".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items())
    *tables, wanted = [part for part in re.split(r"[][.]+", name) if part.strip() and not part.isdecimal()] or [name]
    table = tables[-1] if tables else ""
    if wanted == "name" and table:
        table, wanted = "", table
    column = column_of(wanted).name  # without the number of numbered columns
    parts = [
        "\n".join(_lines(entry))
        for entry in known
        if not table and (column if entry.kind == "column" else wanted) in (entry.name, entry.python)
    ]
    holders: dict[str, list[str]] = {}  # where a key stands, by its explanation
    for entry in known:
        for key in entry.keys:
            if key.name == wanted and table in ("", entry.name, *entry.places):
                place = entry.places[0] if entry.name in entry.places else f"{entry.places[0]}: {entry.name}"
                holders.setdefault(_key_line(key), []).append(f"[{place}]")
    parts += [f"{', '.join(places)}\n  {line}" for line, places in holders.items()]
    choices = [
        entry
        for entry in known
        if not table and entry.name not in entry.places and wanted in (entry.kind, f"{entry.kind}s", *entry.places)
    ]
    if choices:
        lines = (f"  {entry.name}: {_plain(entry.text.partition(chr(10))[0])}" for entry in choices)
        parts.append("\n".join([f"{choices[0].kind}s, for one of which `mpifed explain NAME` tells more:", *lines]))
    if not parts:
        names = [name for entry in known for name in (entry.name, *(key.name for key in entry.keys))]
        raise UsageError(f"{shown(name)}: nothing has that name{nearest(wanted, names)}")
    return "\n\n".join(parts)


def _lines(entry: Entry) -> Iterator[str]:
    yield from (f"{entry.name} ({entry.kind})", "", _plain(entry.text))
    yield from ["", *(f"  {_key_line(key)}" for key in entry.keys)] if entry.keys else []


def _key_line(key: Key) -> str:
    default = f", by default {key.default}" if key.default else ""
    return f"{key.name}: {key.type}{default}. {_plain(key.meaning)}"


def _plain(text: str) -> str:
    """A text without the addresses of links, which are of no use at a terminal, and without comment marks."""
    return re.sub(r"^# differs", "Differs", _LINK.sub(r"\1", text), flags=re.MULTILINE)


# --- schemas ----------------------------------------------------------------------------------------------------------


def schema_of_jobs() -> Table:
    """The JSON Schema of a job's file, by which editors complete and check what is typed."""
    text = json.dumps(adapter().json_schema(schema_generator=_Documented))
    schema: Table = json.loads(text, parse_constant=lambda _: None)  # JSON knows no infinity
    forms: tuple[Table, ...] = ({"type": "integer", "minimum": 1}, {"type": "array", "items": {"type": "object"}})
    keys = {key.name: {"description": key.meaning, **form} for key, form in zip(_SWEEP_KEYS, forms, strict=True)}
    schema["properties"]["sweep"] = {"type": "object", "description": _SWEEP, "properties": keys}
    schema["properties"]["tune"] = keys_of(Tune).model_json_schema(schema_generator=_Documented)  # type: ignore[arg-type]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


class _Documented(GenerateJsonSchema):
    """With the texts beneath fields."""

    def dataclass_schema(self, schema: DataclassSchema) -> Table:
        return _documented(super().dataclass_schema(schema), schema["cls"])

    def model_schema(self, schema: ModelSchema) -> Table:
        return _documented(super().model_schema(schema), *made_of[schema["cls"]])

    def nullable_schema(self, schema: NullableSchema) -> Table:
        return self.generate_inner(schema["schema"])  # TOML has no null

    def handle_invalid_for_json_schema(self, schema: object, error_info: str) -> Table:
        return {}  # of a field of the user's own class


def _documented(schema: Table, *parts: type) -> Table:
    schema["description"] = _text(parts[0])
    for part in parts:
        for field in fields_of(part):
            key = schema["properties"].get(key_of(field), {})
            key["description"] = attribute_docs(part).get(field.name, "")
            if "default" in key and key["default"] is None:
                del key["default"]
    return schema


def _text(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "")


def _default(key: ReadOnlyTable, required: bool) -> str:
    """The default as TOML has it; empty where a value must be given."""
    if "default" in key:
        return json.dumps(key["default"], ensure_ascii=False).replace("Infinity", "inf")
    return "" if required else "absent"


def words(schema: ReadOnlyTable, about: ReadOnlyTable) -> str:
    """The type of a value in the words of TOML; `about`: schemas by name."""
    if "$ref" in schema:
        inner = about[schema["$ref"].rpartition("/")[2]]
        return "a schedule" if "warmup" in inner.get("properties", ()) else words(inner, about)
    if forms := schema.get("oneOf", schema.get("anyOf")):
        return " or ".join(dict.fromkeys(words(form, about) for form in forms))
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return " or ".join(map(json.dumps, values))
    if "prefixItems" in schema:
        items = [item["title"].lower() if "title" in item else words(item, about) for item in schema["prefixItems"]]
        return f"[{', '.join(items)}]"
    text = _TYPES[schema.get("type", "object")]
    if text == "a list":
        least = f", at least {schema['minItems']}" if "minItems" in schema else ""
        return f"a list, each {words(schema['items'], about)}{least}"
    bounds = [f"{sign} {schema[name]:g}" for name, sign in _BOUNDS.items() if schema.get(name, _MANY) < _MANY]
    return f"{text} {', '.join(bounds)}".rstrip()

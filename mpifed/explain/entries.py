"""What a table, key, method or model means, from the classes that read a job; for `mpifed explain` and documents."""

from __future__ import annotations

import inspect
import json
from collections.abc import Container, Mapping
from typing import NamedTuple

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import DataclassSchema, ModelSchema

from mpifed.algorithms import ALGORITHMS
from mpifed.core.algorithm import Algorithm
from mpifed.core.attribute_docs import attribute_docs
from mpifed.core.contract import fields_of, own_class
from mpifed.core.errors import ENDS
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.data.samples import Source
from mpifed.files.columns import shown as shown_columns
from mpifed.job.job import Job, adapter
from mpifed.job.schema import LimitKeys, ModelKeys
from mpifed.job.settings import key_of, keys_of, made_of, tables_in
from mpifed.job.sweep import METHODS
from mpifed.maths.objectives import OBJECTIVES, Objective
from mpifed.maths.optimizers import CLIENT_OPTIMIZERS, OPTIMIZERS, SERVER_OPTIMIZERS
from mpifed.maths.regularizers import REGULARIZERS, Regularizer
from mpifed.maths.schedules import SCHEDULES, StepSize
from mpifed.maths.terms import TERMS, Term
from mpifed.observers import OBSERVERS, Observer

_MANY = 10**6  # from which upper bounds are left out of the help
_BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
_TYPES = {"integer": "an integer", "number": "a number", "boolean": "true or false", "string": "text"}
_BASES = {
    "algorithm": Algorithm, "model": Objective, "regularizer": Regularizer, "observer": Observer,
    "source of data": Source,
}  # fmt: skip
_SCHEDULES = {kind.__name__ for kind in SCHEDULES.values()}


_SWEEP = """Many runs in one file: a run for each combination of the values that are listed, each with all seeds.

Any other key is that of a list of values, as "algorithm.batch_size" = [10, 100]. Tables in a list, those of methods
too, may each have a `label`, by which tables and figures call the runs, as
"algorithm" = [{label = "A", name = "fedavg"}, {label = "B", name = "scaffold"}]."""


_OBSERVE = """[[observe]]: who gets what a run measures, when it is measured; off the clock, on rank 0.

`name`, and the keys of that observer; your own is "module:Class"."""


class Key(NamedTuple):
    """A key of a table."""

    name: str
    type: str
    default: str  # empty where it must be given
    meaning: str


_SWEEP_KEYS = (
    Key("seeds", "an integer > 0", "1", "How many seeds each combination is run with: `seed`, `seed` + 1 and so on."),
    Key(METHODS, "a list of tables", "absent", "Whole tables that go together, as algorithm and client_optimizer."),
)


class Explanation(NamedTuple):
    """What has a name in a job: a table, an algorithm, a model, ..."""

    kind: str  # "table", "algorithm", "model", ...
    name: str
    text: str
    keys: tuple[Key, ...]
    python: str = ""  # the name of its class


def entries() -> list[Explanation]:
    """All tables of a job and all that they can name, the columns of histories, and the exit codes."""
    tables = tables_in(Job)
    listed = [Explanation("job", "job", _text(Job), _keys(Job, skip=tables))]
    listed += [Explanation("table", name, _text(table), _keys(table)) for name, table in tables.items()]
    listed += [
        entry_of("table", "client_optimizer", CLIENT_OPTIMIZERS["sgd"]),
        entry_of("table", "server_optimizer", SERVER_OPTIMIZERS["sgd"]),
        entry_of("table", "model", ModelKeys),
        entry_of("table", "constraint", LimitKeys),
        Explanation("table", "observe", _OBSERVE, ()),
        Explanation("table", "sweep", _SWEEP, _SWEEP_KEYS),
    ]
    kinds: tuple[tuple[str, Mapping[str, type]], ...] = (
        ("algorithm", ALGORITHMS), ("model", OBJECTIVES), ("term", TERMS), ("regularizer", REGULARIZERS),
        ("observer", OBSERVERS),
    )  # fmt: skip
    for kind, known in kinds:
        listed += [entry_of(kind, name, known[name]) for name in known]
    schedules = SCHEDULES | {"step-size": StepSize}
    listed += [entry_of("schedule", name, kind) for name, kind in schedules.items()]
    optimizers = CLIENT_OPTIMIZERS | SERVER_OPTIMIZERS
    listed += [entry_of("optimizer", name, kind) for name, kind in optimizers.items() if name != "sgd"]
    listed += [
        Explanation("column", column.name, f"{column.label}: {column.meaning}", ())
        for column in shown_columns("history")
    ]
    listed += [Explanation("exit code", str(end.code), end.meaning, ()) for end in ENDS]
    return listed


def entry_of(kind: str, name: str, part: type) -> Explanation:
    """The entry of a class of mpifed's."""
    return Explanation(kind, name, _text(part), _keys(part), part.__name__)


def own_entry(name: str) -> Explanation:
    """The entry of a class "module:Class", which is imported."""
    part = own_class(name, object, name)
    kind, base = next(((kind, base) for kind, base in _BASES.items() if issubclass(part, base)), ("term", Term))
    own_class(name, base, name)
    fields, refused = {field.name for field in fields_of(part)}, getattr(part, "refuses", ())
    taken = [f"[{table}]" for table in OPTIMIZERS if table in fields and table not in refused]
    text = _own_text(part)
    return Explanation(kind, name, f"{text}\n\nTakes {' and '.join(taken)}." if taken else text, _keys(part))


def _own_text(part: type) -> str:
    made = (part.__doc__ or "").startswith(f"{part.__name__}(")  # by dataclasses
    return "It has no docstring." if made else _text(part)


# --- from classes -----------------------------------------------------------------------------------------------------


def schema_of_jobs() -> Table:
    """The JSON Schema of a job's file, by which editors complete and check what is typed."""
    text = json.dumps(adapter().json_schema(schema_generator=_Documented))
    schema: Table = json.loads(text, parse_constant=lambda _: None)  # JSON knows no infinity
    keys = {key.name: {"description": key.meaning} for key in _SWEEP_KEYS}
    schema["properties"]["sweep"] = {"type": "object", "description": _SWEEP, "properties": keys}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


class _Documented(GenerateJsonSchema):
    """With the texts beneath fields."""

    def dataclass_schema(self, schema: DataclassSchema) -> Table:
        return _documented(super().dataclass_schema(schema), schema["cls"])

    def model_schema(self, schema: ModelSchema) -> Table:
        return _documented(super().model_schema(schema), *made_of[schema["cls"]])

    def handle_invalid_for_json_schema(self, schema: object, error_info: str) -> Table:
        return {}  # of a field of the user's own class


def _documented(schema: Table, *parts: type) -> Table:
    schema["description"] = _text(parts[0])
    for part in parts:
        docs = attribute_docs(part)
        for field in fields_of(part):
            key = schema["properties"].get(key_of(field), {})
            key["description"] = docs.get(field.name, "")
            if "default" in key and key["default"] is None:
                del key["default"]
    return schema


def _text(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "")


def _keys(part: type, skip: Container[str] = ()) -> tuple[Key, ...]:
    """The keys of a class's table; of a list of values, what these are."""
    if issubclass(part, tuple):  # as StepSize
        docs, items = attribute_docs(part), TypeAdapter(part).json_schema()["prefixItems"]
        named = ((item["title"].lower(), item) for item in items)
        return tuple(Key(name, words(item, {}), _default(item, True), docs[name]) for name, item in named)
    schema = keys_of(part).model_json_schema(schema_generator=_Documented)  # type: ignore[arg-type]  # classes hash
    required, about = schema.get("required", ()), schema.get("$defs", {})
    return tuple(
        Key(name, words(key, about), _default(key, name in required), key["description"])
        for name, key in schema.get("properties", {}).items()
        if name not in skip
    )


def _default(key: ReadOnlyTable, required: bool) -> str:
    """The default as TOML has it; empty where a value must be given."""
    if "default" in key:
        return json.dumps(key["default"], ensure_ascii=False).replace("Infinity", "inf")
    return "" if required else "absent"


def words(schema: ReadOnlyTable, about: ReadOnlyTable) -> str:
    """The type of a value in the words of TOML; `about`: schemas by name."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return "a schedule" if name in _SCHEDULES else words(about[name], about)
    if forms := schema.get("oneOf", schema.get("anyOf")):
        return " or ".join(dict.fromkeys(words(form, about) for form in forms if form.get("type") != "null"))
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return " or ".join(map(json.dumps, values))
    if "prefixItems" in schema:
        items = [item["title"].lower() if "title" in item else words(item, about) for item in schema["prefixItems"]]
        return f"[{', '.join(items)}]"
    if schema.get("type") == "array":
        least = f" at least {schema['minItems']} of them" if "minItems" in schema else ""
        return f"a list of {_plural(words(schema['items'], about))}{least}"
    bounds = (f"{sign} {schema[name]:g}" for name, sign in _BOUNDS.items() if schema.get(name, _MANY) < _MANY)
    return f"{_TYPES.get(schema.get('type', ''), 'a table')} {', '.join(bounds)}".rstrip()


def _plural(text: str) -> str:
    """The plural of the text of a type."""
    for singular, plural in (
        ("an integer", "integers"),
        ("a number", "numbers"),
        ("a table", "tables"),
        ("text", "texts"),
    ):
        text = text.replace(singular, plural)
    return text

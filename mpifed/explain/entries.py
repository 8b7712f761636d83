"""What a table, key, method or model means, from the classes that read a job; for `mpifed explain` and documents."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel

from mpifed.algorithms import ALGORITHMS
from mpifed.core.attribute_docs import attribute_docs
from mpifed.core.contract import fields_of, own_class
from mpifed.core.errors import ENDS
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.data.samples import Source
from mpifed.files.columns import shown as shown_columns
from mpifed.job.components import ALGORITHM, MODEL, REGULARIZER, key_of
from mpifed.job.job import Job
from mpifed.job.schema import LimitKeys, ModelKeys
from mpifed.job.sweep import METHODS
from mpifed.maths.objectives import OBJECTIVES
from mpifed.maths.optimizers import OPTIMIZERS, SERVER_OPTIMIZERS, SGD
from mpifed.maths.regularizers import REGULARIZERS
from mpifed.maths.schedules import SCHEDULES, LearningRate, StepSize
from mpifed.maths.terms import TERMS, Term
from mpifed.observers import OBSERVERS, Observer

_MANY = 10**6  # larger upper bounds are left out of the help


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
    listed = [Explanation("job", "job", _text(Job), _keys(Job, skip=_tables(Job)))]
    listed += [Explanation("table", name, _text(table), _keys(table)) for name, table in _tables(Job).items()]
    listed += [
        entry_of("table", "client_optimizer", SGD),
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
    listed += [entry_of("optimizer", name, kind) for name, kind in SERVER_OPTIMIZERS.items() if name != "sgd"]
    listed += [
        Explanation("column", column.name, f"{column.label}: {column.meaning}", ())
        for column in shown_columns("history")
    ]
    listed += [Explanation("exit code", str(end.code), end.meaning, ()) for end in ENDS]
    return listed


def reference() -> list[tuple[str, str]]:
    """(title, Markdown) of each entry of a job, in order."""
    jobs = (entry for entry in entries() if entry.kind not in ("column", "exit code"))
    return [(f"{entry.kind} `{entry.name}`", "\n".join(_markdown(entry))) for entry in jobs]


def entry_of(kind: str, name: str, part: type) -> Explanation:
    """The entry of a class of mpifed's."""
    return Explanation(kind, name, _text(part), _keys(part), part.__name__)


def own_entry(name: str) -> Explanation:
    """The entry of a class "module:Class", which is imported."""
    part, place = own_class(name, object, name), {kind.table: kind for kind in (ALGORITHM, MODEL, REGULARIZER)}
    if issubclass(part, Source):
        return Explanation("source of data", name, _text(part), _keys(own_class(name, Source, name)))
    if issubclass(part, Observer):
        own_class(name, Observer, name)
        return Explanation("observer", name, _own_text(part), _keys(part))
    kind = next((table for table, known in place.items() if issubclass(part, known.base)), "term")
    own_class(name, place[kind].base if kind in place else Term, name)
    hints, refused = get_type_hints(part), getattr(part, "refuses", ())
    taken = [f"[{table}]" for table in OPTIMIZERS if table in hints and table not in refused]
    text = _own_text(part)
    return Explanation(kind, name, f"{text}\n\nTakes {' and '.join(taken)}." if taken else text, _keys(part))


def _own_text(part: type) -> str:
    made = (part.__doc__ or "").startswith(f"{part.__name__}(")  # by dataclasses
    return "It has no docstring." if made else _text(part)


# --- Markdown ---------------------------------------------------------------------------------------------------------


def _markdown(entry: Explanation) -> Iterator[str]:
    yield entry.text
    if entry.keys:
        yield ""
        yield "| key | value | default | meaning |"
        yield "| --- | --- | --- | --- |"
        for key in entry.keys:
            cells = (f"`{key.name}`", key.type, f"`{key.default}`" if key.default else "", key.meaning)
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


# --- from classes -----------------------------------------------------------------------------------------------------


def _text(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "")


def _tables(job: type[BaseModel]) -> dict[str, type]:
    """The tables of a job that are classes, by name."""
    tables: dict[str, type] = {}
    for name, field in job.model_fields.items():
        classes = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
        of_keys = [kind for kind in classes if issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)]
        tables |= {name: of_keys[0]} if of_keys else {}
    return tables


def _keys(kind: type, skip: ReadOnlyTable | tuple[()] = ()) -> tuple[Key, ...]:
    hints, docs = get_type_hints(kind, include_extras=True), attribute_docs(kind)
    defaults: Table = {}
    keys: dict[str, str] = {}
    if issubclass(kind, BaseModel):
        names = [name for name in kind.model_fields if name not in skip]
        defaults = {name: field.default for name, field in kind.model_fields.items() if not field.is_required()}
    elif issubclass(kind, tuple):
        names, defaults = list(getattr(kind, "_fields", ())), getattr(kind, "_field_defaults", {})
    else:
        fields = [field for field in fields_of(kind) if not field.name.startswith("problem")]
        names = [field.name for field in fields if field.name not in ("client_optimizer", "server_optimizer")]
        defaults = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
        keys = {field.name: key_of(field) for field in fields}
    return tuple(
        Key(keys.get(name, name), type_text(hints[name]), _default(defaults, name), docs.get(name, ""))
        for name in names
    )


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


def _default(defaults: ReadOnlyTable, name: str) -> str:
    if name not in defaults:
        return ""
    value = defaults[name]
    if value is None:
        return "absent"
    if isinstance(value, (list, tuple)):
        return str(list(value)).replace("'", '"')
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


def type_text(hint: object) -> str:
    """The type of a value in the words of TOML."""
    if hint == LearningRate:
        return "a number or a schedule"
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return type_text(arguments[0]) + _bounds(arguments[1:])
    if origin is Literal:
        return " or ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_text(part) for part in arguments if part is not type(None)))
    if origin in (list, tuple):
        return f"a list of {_plural(type_text(arguments[0]))}"
    plain = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
    if hint in plain:
        return plain[hint]
    if isinstance(hint, type) and issubclass(hint, tuple):  # a named tuple, as StepSize
        return f"[{', '.join(getattr(hint, '_fields', ()))}]"
    return "a table"


def _bounds(marks: tuple[object, ...]) -> str:
    bounds = []
    for mark in marks:
        for kind, sign, name in ((Gt, ">", "gt"), (Ge, ">=", "ge"), (Lt, "<", "lt"), (Le, "<=", "le")):
            bound = getattr(mark, name, None) if isinstance(mark, kind) or hasattr(mark, "metadata") else None
            if bound is not None and not (sign[0] == "<" and bound >= _MANY):
                bounds.append(f"{sign} {bound:g}")
        if hasattr(mark, "metadata"):
            bounds += [text for inner in mark.metadata for text in [_bounds((inner,)).strip()] if text]
        if isinstance(mark, MinLen):
            bounds.append(f"at least {mark.min_length} of them")
    return f" {', '.join(dict.fromkeys(bounds))}" if bounds else ""

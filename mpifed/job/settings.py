"""How settings are read: tables whose keys are the fields of dataclasses, of files and of Python's objects alike.

An object becomes its whole table, with every default and every `name`; a table is held to the annotations of its class,
and all that is wrong with it is told at once.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    get_args,
    get_type_hints,
)

import numpy as np

from mpifed.algorithms import ALGORITHMS
from mpifed.algorithms.algorithm import Algorithm
from mpifed.contract import fields_of, named, own_class, own_module
from mpifed.core.errors import UsageError
from mpifed.core.record import Array
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.files.expected import expected
from mpifed.hyperparameters import MadeByKeywords
from mpifed.job.reading import listed_errors, where_is
from mpifed.maths.adaptive import CLIENT_OPTIMIZERS, OPTIMIZERS, SERVER_OPTIMIZERS
from mpifed.maths.compression import COMPRESSORS, Compression
from mpifed.maths.objectives import OBJECTIVES, Objective
from mpifed.maths.optimizers import ClientOptimizer, ServerOptimizer
from mpifed.maths.regularizers import REGULARIZERS, Regularizer
from mpifed.maths.schedules import SCHEDULES
from mpifed.maths.terms import TERMS, Term
from mpifed.observers import OBSERVERS, Observer
from mpifed.text import nearest, shown

if TYPE_CHECKING:
    from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError, ValidationInfo
    from pydantic_core import CoreSchema, ErrorDetails

STRICT: ConfigDict = {
    "extra": "forbid", "strict": True, "allow_inf_nan": False, "arbitrary_types_allowed": True,
    "protected_namespaces": (),
}  # fmt: skip
Part = TypeVar("Part")  # a dataclass
Key: TypeAlias = tuple[str | int, ...]
_GIVEN = ("problem", *OPTIMIZERS)  # fields of algorithms that are no keys of [algorithm]
_RUNS = {"Problem": object}  # the annotation of what a run gives, which settings need not import
_SCHEDULES = {kind.__name__: kind for kind in SCHEDULES.values()}  # as pydantic names the forms of a learning rate
# the classes of a job that have names in it, by their base class
REGISTRIES: dict[type, Mapping[str, type]] = {
    Objective: OBJECTIVES, Algorithm: ALGORITHMS, Term: TERMS, Regularizer: REGULARIZERS, Observer: OBSERVERS,
    ClientOptimizer: CLIENT_OPTIMIZERS, ServerOptimizer: SERVER_OPTIMIZERS, Compression: COMPRESSORS,
}  # fmt: skip
SPLITS = ("rows", "columns", "grid")


class Settings(MadeByKeywords):
    """Base of the tables that all jobs have alike: frozen dataclasses, whose fields are the keys."""

    __pydantic_config__: ClassVar[object] = STRICT


# --- errors -----------------------------------------------------------------------------------------------------------


class Error(NamedTuple):
    """What is wrong with a value, or with what is missing."""

    key: Key  # a table and its keys; tables of a list, and values of one, are counted from 0
    value: object  # `...` where there is none
    what: str
    remedy: str = ""

    def in_toml(self) -> str:
        """The error, for who reads a file."""
        return self._line(where_is(self.key), json.dumps(self.value, default=str) if self.value is not ... else "")

    def in_python(self) -> str:
        """The error, for who calls a function."""
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.key)
        return self._line(shown(key[1:]), repr(self.value) if self.value is not ... else "")

    def _line(self, key: str, value: str) -> str:
        return f"{key}{' = ' if value else ''}{shown(value)}: {self.what}{'; ' if self.remedy else ''}{self.remedy}"


class Wrong(UsageError):
    """All that is wrong with the values of a job, in the words of TOML."""

    source: str  # the file, or the function
    errors: Sequence[Error]

    @classmethod
    def of(cls, source: str, errors: Sequence[Error]) -> Wrong:
        wrong = cls(listed_errors(source, [error.in_toml() for error in errors]))
        wrong.source, wrong.errors = source, errors
        return wrong

    def in_python(self) -> UsageError:
        """The same, in the words of Python."""
        return UsageError(listed_errors(self.source, [error.in_python() for error in self.errors]))


class _Faulty(ValueError):
    """The errors of a table that names its class, by keys within it; they are its argument."""


def errors_of(wrong: ValidationError, kind: type, given: object, known: Sequence[str] = ()) -> Iterator[Error]:
    """What pydantic has found in what was given for a class; `known`: its keys, where not all fields are.

    Of a value that may have several forms, it has found the errors of each: told are those of the form that was meant,
    whose errors are the innermost and fewest, with what the other forms expect there.
    """
    unions: dict[Key, dict[str, list[Error]]] = {}
    for entry in wrong.errors(include_url=False):
        key, form, at, place = Key(), "", given, entry["loc"]
        union = key
        for number, part in enumerate(place, 1):
            inside = part in at if isinstance(at, dict) else isinstance(at, list) and isinstance(part, int)
            if inside or number == 1 or (entry["type"] == "missing" and number == len(place)):
                key, at = (*key, part), at[part] if inside else None  # type: ignore[index]  # a table or a list
            elif not form:  # no key, but what pydantic calls a form
                form, union = str(part), key
        found = list(_of_entry(entry, key, kind, _SCHEDULES.get(form), known))
        if form:
            unions.setdefault(union, {}).setdefault(form, []).extend(found)
        else:
            yield from found
    for forms in unions.values():
        every = [each for found in forms.values() for each in found]
        for chosen in min(forms.values(), key=lambda found: (-min(len(each.key) for each in found), len(found))):
            whats = dict.fromkeys(each.what for each in every if each.key == chosen.key and each.value == chosen.value)
            yield chosen._replace(what=" or ".join(whats).replace(" or expected ", " or "))


def _of_entry(entry: ErrorDetails, key: Key, kind: type, form: type | None, known: Sequence[str]) -> Iterator[Error]:
    value, inner = entry["input"], entry.get("ctx", {}).get("error")
    if isinstance(inner, _Faulty):
        yield from (error._replace(key=(*key, *error.key)) for error in inner.args[0])
    elif entry["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        table = form or (kind if len(key) == 1 else tables_in(kind).get(str(key[0]), kind))
        names = (len(key) == 1 and known) or [key_of(field) for field in fields_of(table)]
        remedy = f"known are {', '.join(names) or 'none'}"
        yield Error(key, ..., f"unknown key{nearest(str(key[-1]), names)}", remedy)
    elif entry["type"] == "missing":
        yield Error(key, ..., "missing")
    elif entry["type"] != "too_short" or not value:  # else one of its values is wrong
        yield Error(key, value, expected(entry))


def tables_in(kind: type) -> dict[str, type]:
    """The classes of the tables that are keys of a class's table, by key."""
    parts = [(key, part) for key, hint in hints_of(kind).items() for part in (hint, *get_args(hint))]
    return {key: part for key, part in parts if isinstance(part, type) and is_dataclass(part)}


# --- objects as tables ------------------------------------------------------------------------------------------------


def table_of(value: object) -> Any:  # a value of TOML: a number, text, list or table
    """A value as TOML has it; of an object all keys that have a value, and first its `name`."""
    if isinstance(value, np.generic | np.ndarray):
        array: Array = np.asarray(value)
        return array.tolist()
    if isinstance(value, Mapping):
        return {str(key): table_of(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [table_of(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        fields = [field for field in fields_of(type(value)) if field.name != "problem"]
        given = [(key_of(field), getattr(value, field.name), field.default) for field in fields]
        table = {key: table_of(item) for key, item, default in given if not _absent(item, default)}
        name = name_of(type(value))
        return {"name": name, **table} if name else table
    return named(value) if callable(value) else value


def _absent(value: object, default: object) -> bool:
    """Whether a table has no such key: without a value, or with a bound that there is not."""
    return value is None or (isinstance(default, float) and math.isinf(default) and value == default)


def name_of(kind: type) -> str | None:
    """The name of a class in a job; None of one that has no name, as a table that all jobs have alike."""
    known = next((known for base, known in REGISTRIES.items() if issubclass(kind, base)), None)
    if known is None:
        return None
    for name, part in known.items():
        if kind is part or (issubclass(part, Algorithm) and kind in map(part.for_split, SPLITS)):
            return name
    return named(kind)


# --- tables as objects ------------------------------------------------------------------------------------------------


class CheckedTable(dict[str, Any]):  # of TOML
    """A checked table that names its class, with all defaults; rank 0 alone reads one, and others need no pydantic."""

    read: Table | None = None  # what an object is made of; of a class of the user's, whom pickles do not know, None


@dataclasses.dataclass(frozen=True)
class Kind(Generic[Part]):
    """Marks a table whose `name` says which class its other keys are of: of a registry, or the user's "module:Class".

    What is read has all defaults.
    """

    base: type[Part]  # of the registry
    beside: type | None = None  # a dataclass of further keys
    own: bool = True  # whether it may be the user's

    @property
    def known(self) -> Mapping[str, type[Part]]:
        """The package's own classes, by name."""
        return REGISTRIES.get(self.base, {"sgd": self.base})

    def part(self, name: object) -> type[Part]:
        """The class of a name; UsageError where there is none, with a line for each reason."""
        if isinstance(name, str) and name in self.known:
            return self.known[name]
        if self.own and own_module(name) is not None:
            return own_class(str(name), self.base, "name")
        what = "missing" if name is None else f"is not known{nearest(str(name), self.known)}"
        yours = ', or your own as "my_module:MyClass"' if self.own else ""
        raise UsageError(f"name: {what}; give one of {', '.join(self.known)}{yours}")

    def whole(self, table: object, info: ValidationInfo) -> Table | None:
        """A table with all defaults, without keys that are None; `info.context` is the class of the algorithm."""
        from pydantic import ValidationError

        if not isinstance(table, dict):
            raise _Faulty([Error((), table, "expected a table")])
        name = table.get("name")
        at_name = Error(("name",), ... if name is None else name, "")
        try:
            part = self.part(name)
            if isinstance(info.context, type) and hints_of(part).get("bias") == bool | None:  # type: ignore[arg-type]
                table = {"bias": getattr(info.context, "intercepts", True), **table}
            read = self.read(part, table)
        except UsageError as error:
            reasons = str(error).removeprefix("name: ").split("\nname: ")
            raise _Faulty([at_name._replace(what=reason) for reason in reasons]) from error
        except ValidationError as error:
            known = list(keys_of(part, self.beside).model_fields)  # type: ignore[arg-type]  # classes hash
            raise _Faulty([*errors_of(error, part, table, known)]) from error
        except Exception as error:  # annotations of the user's own class
            what = f"{type(error).__name__}: {error}"
            raise _Faulty([at_name._replace(what=what, remedy="correct its annotations")]) from error
        fields, values = type(read).model_fields, read.model_dump(mode="json", exclude_none=True)
        checked = CheckedTable((key, value) for key, value in values.items() if not _absent(value, fields[key].default))
        checked.read = None if own_module(name) else vars(read)
        return checked

    def read(self, part: type, table: ReadOnlyTable) -> BaseModel:
        """The values of a class's table; pydantic's ValidationError where one is wrong."""
        return keys_of(part, self.beside, table["name"]).model_validate_json(json.dumps(table))

    def make(self, table: ReadOnlyTable, split: str | None = None, **given: object) -> Part:
        """The object of a checked table, and of what the run gives; `split`: of the data, if there is any."""
        part: Any = self.part(table["name"])  # an algorithm, or a class of any other kind
        made = part.for_split(split) if split else part
        read = getattr(table, "read", None) or vars(self.read(part, table))
        found: Part = made(
            **given, **{field.name: read[key] for field in fields_of(made) if (key := key_of(field)) in table}
        )
        return found

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        from pydantic_core.core_schema import with_info_plain_validator_function

        return with_info_plain_validator_function(self.whole)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Table:
        """The keys of all classes, each once, for editors that complete them; and what the class of a name takes."""
        keys, rules = dict[str, list[Table]](), list[Table]()
        for name, part in self.known.items():
            model = keys_of(part, self.beside, name)  # type: ignore[arg-type]  # classes hash
            form = handler.resolve_ref_schema(handler(model.__pydantic_core_schema__))
            for key, value in form["properties"].items():
                keys.setdefault(key, []).append(value)
            at = {"properties": {"name": {"const": name}}, "required": [] if name == "sgd" else ["name"]}
            rules.append({"if": at, "then": form})
        names = [{"enum": [*self.known]}, *([{"type": "string", "pattern": ":"}] if self.own else ())]
        every = {key: _of_all(schemas, handler) for key, schemas in keys.items()}
        every["name"] = {"type": "string", "anyOf": names}
        required = [] if "sgd" in self.known else ["name"]
        return {"type": "object", "allOf": [{"properties": every, "required": required}, *rules]}


def _of_all(schemas: Sequence[Table], handler: GetJsonSchemaHandler) -> Table:
    """What a key means in all classes that have it, and the types of its values."""
    first, *others = schemas
    if "anyOf" not in first and all(first == other for other in others):  # editors list each of its forms
        return first
    forms = [handler.resolve_ref_schema(form) for schema in schemas for form in schema.get("anyOf", [schema])]
    about = dict.fromkeys(schema.get("description", "") for schema in schemas)
    return {"type": sorted({form["type"] for form in forms}), "description": "\n\n".join(about)}


@dataclasses.dataclass(frozen=True)
class Optimizer(Kind[Part]):
    """Marks a table of an optimizer, "sgd" where it gives no name: one of those that the algorithm takes, or none."""

    table: str = ""
    own: bool = False

    def of(self, algorithm: type) -> Kind[object] | None:
        """The optimizers that an algorithm takes there."""
        hint = hints_of(algorithm).get(self.table)
        return None if hint is None else Kind(hint, own=False)

    def whole(self, table: object, info: ValidationInfo) -> Table | None:
        kind = self.of(info.context) if isinstance(info.context, type) else self
        if kind is self:  # [algorithm] is wrong, and says so
            return None
        if kind is not None:
            given = {"name": "sgd", **(table or {})} if isinstance(table, dict | None) else table
            return kind.whole(given, info)
        if table:
            remedy = f"leave it out, as by --set {self.table}={{}}"
            raise _Faulty([Error((), ..., "[algorithm] takes none", remedy)])
        return None


@cache
def keys_of(part: type, beside: type | None = None, name: str = "") -> type[BaseModel]:
    """The keys of a class's table: its `name`, its fields, but those that the run gives, and the fields of `beside`."""
    from pydantic import AllowInfNan, ConfigDict, create_model

    typed: Table = {"name": (Literal[name], name if name == "sgd" else ...)} if name else {}  # of an optimizer: sgd
    own = part.__module__.partition(".")[0] != "mpifed"
    for kind in (part, beside) if beside else (part,):
        hints = get_type_hints(kind, localns=_RUNS, include_extras=True)
        for field in fields_of(kind):
            if issubclass(kind, Algorithm) and field.name in _GIVEN:
                continue
            hint, default = hints[field.name], field.default
            if isinstance(default, float) and math.isinf(default):  # such as a bound that may be absent
                hint = Annotated[hint, AllowInfNan(True)]
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            if isinstance(default, np.generic):
                default = default.item()
            typed[key_of(field)] = (hint, ... if default is dataclasses.MISSING else default)
    model: type[BaseModel] = create_model(
        part.__name__, __config__=ConfigDict(**STRICT, validate_default=own), __doc__=part.__doc__, **typed
    )
    made_of[model] = (part, beside) if beside else (part,)
    return model


made_of: dict[type, tuple[type, ...]] = {}  # the classes of what `keys_of` gives


def key_of(field: dataclasses.Field[object]) -> str:
    """The key of a field in the table: its name, unless a method has that name."""
    key: str = field.metadata.get("key", field.name)
    return key


@cache
def hints_of(part: type) -> Table:
    """The annotations of a class, evaluated once."""
    return get_type_hints(part, localns=_RUNS)

"""The named parts of a job, such as model and algorithm: tables whose keys are the fields of a dataclass."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import AllowInfNan, BaseModel, ConfigDict, Discriminator, Tag, TypeAdapter, ValidationError, create_model

from mpifed.algorithms import ALGORITHMS
from mpifed.core.algorithm import Algorithm
from mpifed.core.contract import fields_of, own_class, own_module
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Problem
from mpifed.core.expected import expected, value_of_list
from mpifed.core.nearest import nearest
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.core.text import shown
from mpifed.job.loading import where_is
from mpifed.maths.objectives import OBJECTIVES, Objective
from mpifed.maths.optimizers import OPTIMIZERS, SERVER_OPTIMIZERS, ServerOptimizer
from mpifed.maths.ranges import Size
from mpifed.maths.regularizers import REGULARIZERS, Regularizer
from mpifed.maths.schedules import SCHEDULES, CosineDecay, LearningRate, PowerDecay, StepDecay
from mpifed.maths.terms import TERMS, Term
from mpifed.observers import OBSERVERS, Observer

_NUMBER, _LIST = "number", "list"
_ANY_CLASS = ConfigDict(arbitrary_types_allowed=True)
_TABLE = TypeAdapter(Table)
Part = TypeVar("Part")  # a dataclass


def _rate_kind(value: object) -> str | None:
    """The form of a learning rate: a number, or the name of a schedule."""
    if isinstance(value, dict):
        kind = value.get("schedule", "power")
        return kind if isinstance(kind, str) else None
    return getattr(value, "schedule", None if isinstance(value, list) else _NUMBER)


# distinguished before validation, so that an error is about the form that was meant
_LEARNING_RATE = Annotated[
    Annotated[Size, Tag(_NUMBER)]
    | Annotated[PowerDecay, Tag("power")]
    | Annotated[StepDecay, Tag("step")]
    | Annotated[CosineDecay, Tag("cosine")],
    Discriminator(
        _rate_kind,
        custom_error_type="learning_rate",
        custom_error_message="a learning rate is a number, or a schedule: {initial = 0.1, exponent = 0.5}, {schedule = "
        '"step", initial, factor, every} or {schedule = "cosine", initial, rounds}',
    ),
]


def _told_apart(hint: Any) -> Any:  # a type, of which Python has no type
    """`X | tuple[X, ...]` as a union whose form is known before validation, for the same reason; others unchanged."""
    forms = [form for form in get_args(hint) if get_origin(hint) in (Union, types.UnionType)]
    tags = [_LIST if get_origin(form) is tuple else _NUMBER for form in forms]
    if sorted(tags) != [_LIST, _NUMBER] or type(None) in forms:
        return hint
    one, other = (Annotated[form, Tag(tag)] for form, tag in zip(forms, tags, strict=True))
    kind_of = Discriminator(lambda value: _LIST if isinstance(value, list | tuple) else _NUMBER)
    return Annotated[one | other, kind_of]


@dataclasses.dataclass(frozen=True)
class Kind(Generic[Part]):
    """A kind of named part."""

    table: str
    known: Mapping[str, type[Part]]  # the package's own, by name
    given: tuple[str, ...]  # fields that the run sets and the job does not
    base: type[Part]  # base class of its classes
    beside: tuple[str, ...] = ()  # keys of the table that are no fields
    standard: str | None = None  # the name where a table gives none; no classes of the user's own then


MODEL = Kind[Objective]("model", OBJECTIVES, (), Objective, ("start",))
ALGORITHM = Kind[Algorithm]("algorithm", ALGORITHMS, ("problem", *OPTIMIZERS), Algorithm)
MINIMIZE = Kind[Term]("minimize", TERMS, (), Term)
REGULARIZER = Kind[Regularizer]("regularizer", REGULARIZERS, (), Regularizer)


def optimizers(algorithm: ReadOnlyTable) -> dict[str, Kind[object]]:
    """The optimizers that a valid `[algorithm]` takes, by the name of their tables."""
    hints = _hints(_class(ALGORITHM, algorithm))
    taken = {name: {"sgd": hints[name]} for name in OPTIMIZERS if name in hints}
    return {
        name: Kind(name, SERVER_OPTIMIZERS if known["sgd"] is ServerOptimizer else known, (), object, standard="sgd")
        for name, known in taken.items()
    }


def with_intercepts(model: ReadOnlyTable, algorithm: ReadOnlyTable) -> ReadOnlyTable:
    """A valid `[model]` with `bias`, which is that of the algorithm where the job does not give it.

    This concerns models with a field `bias` whose default is None.
    """
    fields = {field.name: field for field in fields_of(_class(MODEL, model))}
    if "bias" not in fields or fields["bias"].default is not None or "bias" in model:
        return model
    return {**model, "bias": of_class(ALGORITHM, algorithm, "intercepts")}


def constraint(number: int) -> Kind[Term]:
    """The term of a `[[constraint]]`, numbered from 1."""
    return Kind(f"constraint {number}", TERMS, (), Term, ("limit", "margin"))


def observer(number: int) -> Kind[Observer]:
    """The observer of an `[[observe]]`, numbered from 1."""
    return Kind(f"observe {number}", OBSERVERS, (), Observer)


def wrong_with(kind: Kind[Any], table: ReadOnlyTable) -> list[str]:  # of any kind
    """The errors of a table, one message each; the user's own class is imported."""
    try:
        part = _class(kind, table)
    except UsageError as error:
        return [str(error)]
    try:
        _fields(kind, part, table)
    except ValidationError as error:
        keys = [key_of(field) for field in fields_of(part) if field.name not in kind.given]
        keys += kind.beside
        return [message(entry, [kind.table, *entry["loc"]], keys) for entry in error.errors()]
    except Exception as error:  # annotations of the user's own class
        if part.__module__.partition(".")[0] == "mpifed":
            raise
        return [f'[{kind.table}] name = "{table["name"]}": {type(error).__name__}: {error}; correct its annotations']
    return list(_wrong_defaults(kind, part, table))


def _wrong_defaults(kind: Kind[Any], part: type, table: ReadOnlyTable) -> Iterator[str]:  # of any kind
    """The errors of the defaults of the user's own class, which a job that gives no value would take."""
    if own_module(table.get("name")) is None:
        return
    hints = get_type_hints(part, include_extras=True)
    for field in fields_of(part):
        if field.name in kind.given or field.default is dataclasses.MISSING or key_of(field) in table:
            continue
        try:
            create_model("Default", __config__=_ANY_CLASS, value=(hints[field.name], ...))(value=field.default)
        except ValidationError as error:
            what = f"the default of {key_of(field)}, {shown(repr(field.default))}"
            yield f'[{kind.table}] name = "{table["name"]}": {what}: {expected(error.errors()[0])}; correct the class'


def of_class(kind: Kind[Part], table: ReadOnlyTable, attribute: str) -> object:
    """An attribute of the class that a valid table names."""
    return getattr(_class(kind, table), attribute)


def make(kind: Kind[Part], table: ReadOnlyTable) -> Part:
    """The object that a valid table describes."""
    part = _class(kind, table)
    return part(**_arguments(kind, part, part, table))


def make_algorithm(table: ReadOnlyTable, problem: Problem, given: ReadOnlyTable) -> Algorithm:
    """The algorithm that a valid table describes, for the split of the problem's data; `given`: its optimizers."""
    part = _class(ALGORITHM, table)
    for_split = part.for_split(problem.split)
    return for_split(problem=problem, **given, **_arguments(ALGORITHM, part, for_split, table))


def _arguments(kind: Kind[Part], part: type[Part], made: type[Part], table: ReadOnlyTable) -> Table:
    """The arguments of the class `made`, from a table that `part` describes."""
    names = {key_of(field): field.name for field in fields_of(made)}
    return {names[key]: value for key, value in _fields(kind, part, table).items()}


def written_out(kind: Kind[Part], table: ReadOnlyTable) -> Table:
    """The table with all defaults, without keys that are None."""
    fields = _fields(kind, _class(kind, table), table)
    plain = _TABLE.dump_python(fields, mode="json") | {key: table.get(key) for key in kind.beside}
    return {
        "name": table.get("name", kind.standard),
        **{key: value for key, value in plain.items() if value is not None},
    }


def message(error: ReadOnlyTable, place: Sequence[int | str], known: list[str]) -> str:
    """The message of a pydantic error: where, what came, what was expected.

    Parameters
    ----------
    error : an entry of `ValidationError.errors()`
    place : table and keys
    known : the keys that could stand there
    """
    schedule = next((SCHEDULES[part] for part in place[2:] if part in SCHEDULES), None)
    place = [*place[:2], *(part for part in place[2:] if part not in (_NUMBER, _LIST, *SCHEDULES))]
    place, position = value_of_list(place)
    where = f"{where_is(place)}{position}"
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        names = [field.name for field in fields_of(schedule)] if schedule is not None else known
        return f"{where}: unknown key{nearest(str(place[-1]), names)}; known are {', '.join(names) or 'none'}"
    if error["type"] == "missing":
        return f"{where}: missing"
    return f"{where} = {shown(json.dumps(error['input'], default=str))}: {expected(error)}"


def _class(kind: Kind[Part], table: ReadOnlyTable) -> type[Part]:
    name = table.get("name", kind.standard)
    if isinstance(name, str) and name in kind.known:
        return kind.known[name]
    if kind.standard is not None or own_module(name) is None:
        problem = "missing" if name is None else f"{shown(repr(name))} is not known{nearest(str(name), kind.known)}"
        yours = "" if kind.standard else ', or your own as "my_module:MyClass"'
        raise UsageError(f"[{kind.table}] name: {problem}; give one of {', '.join(kind.known)}{yours}")
    return own_class(name, kind.base, f'[{kind.table}] name = "{name}"')


def _fields(kind: Kind[Part], part: type[Part], table: ReadOnlyTable) -> Table:
    """The values of a table in the types that the dataclass annotates; raises pydantic's ValidationError."""
    model = _model(part, kind.given)  # type: ignore[arg-type]  # a class is hashable
    others = {"name", *kind.beside}
    parsed = model.model_validate_json(json.dumps({key: value for key, value in table.items() if key not in others}))
    return {name: getattr(parsed, name) for name in model.model_fields}


@cache
def _model(part: type, given: tuple[str, ...]) -> type[BaseModel]:
    """The pydantic model of a dataclass's table; made once for all points of a sweep."""
    hints = get_type_hints(part, include_extras=True)
    config = ConfigDict(
        extra="forbid", strict=True, arbitrary_types_allowed=True, protected_namespaces=(), allow_inf_nan=False
    )
    fields = [field for field in fields_of(part) if field.name not in given]
    hints = {name: _LEARNING_RATE if hint == LearningRate else _told_apart(hint) for name, hint in hints.items()}
    for field in fields:
        if isinstance(field.default, float) and math.isinf(field.default):  # such as a bound that may be absent
            hints[field.name] = Annotated[hints[field.name], AllowInfNan(True)]
    typed: Table = {key_of(field): (hints[field.name], _default(field)) for field in fields}
    model: type[BaseModel] = create_model(part.__name__, __config__=config, **typed)
    return model


@cache
def _hints(part: type) -> Table:
    """The annotations of a class, evaluated once."""
    return get_type_hints(part)


def key_of(field: dataclasses.Field[object]) -> str:
    """The key of a field in the table: its name, unless a method has that name."""
    key: str = field.metadata.get("key", field.name)
    return key


def _default(field: dataclasses.Field[object]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return ... if field.default is dataclasses.MISSING else field.default

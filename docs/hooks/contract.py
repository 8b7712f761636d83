"""The members of the classes that algorithms, models and sources are written with, from signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

from mpifed.algorithms.algorithm import Algorithm, Rows
from mpifed.algorithms.cells import Grid
from mpifed.algorithms.columns import Columns
from mpifed.algorithms.local_method import Done, Local, LocalMethod, Sent, Server
from mpifed.contract import attribute_docs
from mpifed.core.exchange import Exchange, Field
from mpifed.core.holdings import Placed
from mpifed.core.lazy import Lazy
from mpifed.core.round import Round
from mpifed.data.block import Batch, Block
from mpifed.data.samples import Samples, Source
from mpifed.maths.losses import SampleLoss
from mpifed.maths.objectives import Objective, Parameters, Slope
from mpifed.maths.problem import Problem, Weighted
from mpifed.maths.regularizers import Regularizer
from mpifed.maths.terms import Term

CLASSES: tuple[type, ...] = (
    Algorithm, LocalMethod, Local, Sent, Done, Server, Rows, Columns, Grid, Exchange, Field, Placed, Lazy, Weighted,
    Round, Problem, Block, Batch,
    SampleLoss, Objective, Parameters, Slope, Term, Regularizer, Source, Samples,
)  # fmt: skip
_FIELD = re.compile(r"^    (?P<name>[A-Za-z]\w*): .*?(?:  # (?!type: )(?P<text>.*))?$")
_ATTRIBUTE = re.compile(r"^(\w+) : (.*)$")


class Member(NamedTuple):
    """A row of a table."""

    signature: str
    text: str
    default: str


def sections() -> Iterator[str]:
    """A heading, the docstring and a table of members for each class."""
    for kind in CLASSES:
        yield f"### {kind.__name__}"
        text, _ = split(inspect.cleandoc(kind.__doc__ or ""))
        bases = [base.__name__ for base in kind.__bases__ if base in CLASSES]
        yield f"`{kind.__module__}.{kind.__name__}`" + (f", derived from `{bases[0]}`" if bases else "") + f". {text}"
        rows = [f"| `{one.signature}` | {cell(one.text)} | {cell(one.default)} |" for one in members(kind)]
        if rows:
            yield "\n".join(["| member | | default |", "| --- | --- | --- |", *rows])


def members(kind: type) -> Iterator[Member]:
    """The public members that a class declares itself."""
    texts, defaults = field_texts(kind), field_defaults(kind)
    for name in [name for name in defaults if not name.startswith("_")]:
        yield Member(name, texts.get(name, ""), defaults[name])
    for name, value in vars(kind).items():
        function = getattr(value, "__func__", getattr(value, "fget", getattr(value, "func", value)))
        if name.startswith("_") or name in defaults or not inspect.isfunction(function):
            continue
        given = "must be given" if getattr(function, "__isabstractmethod__", False) else ""
        called = "" if isinstance(value, property) or hasattr(value, "func") else arguments(function)
        returned = inspect.signature(function).return_annotation
        yield Member(f"{name}{called} -> {returned}".replace("'", ""), inspect.cleandoc(function.__doc__ or ""), given)


def arguments(function: Any) -> str:
    """(name, name=default, ...) without annotations and self."""
    signature = inspect.signature(function)
    given = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    given = [one for one in given if one.name not in ("self", "cls")]
    return str(signature.replace(parameters=given, return_annotation=inspect.Signature.empty))


def field_defaults(kind: type) -> dict[str, str]:
    """By the name of each field, attribute or argument of a class, its default."""
    if issubclass(kind, tuple):
        fields: Any = kind
        return {name: said(fields._field_defaults.get(name, inspect.Parameter.empty)) for name in fields._fields}
    if "__init__" in vars(kind) and not dataclasses.is_dataclass(kind):
        return {one.name: said(one.default) for one in inspect.signature(kind).parameters.values()}
    names = inspect.get_annotations(kind)
    return {name: said(vars(kind).get(name, inspect.Parameter.empty)) for name in names}


def said(default: Any) -> str:
    """A default as Python writes it."""
    return "must be given" if default is inspect.Parameter.empty else f"`{default!r}`"


def field_texts(kind: type) -> Mapping[str, str]:
    """What is said of a field: in a comment on its line or above, below it, or in the class's docstring."""
    found, above = dict[str, str](), list[str]()
    for line in inspect.getsource(kind).splitlines():
        if line.startswith("    # "):
            above.append(line[6:])
            continue
        if field := _FIELD.match(line):
            found[field["name"]] = " ".join([*above, field["text"] or ""]).strip()
        above.clear()
    return {**found, **attribute_docs(kind), **split(inspect.cleandoc(kind.__doc__ or ""))[1]}


def split(text: str) -> tuple[str, dict[str, str]]:
    """(the docstring of a class without its section of attributes or parameters, these by name)."""
    text, *sections = re.split(r"\n\n(?:Attributes|Parameters)\n-+\n", text, maxsplit=1)
    found, last = dict[str, str](), ""
    for line in "".join(sections).splitlines():
        if attribute := _ATTRIBUTE.match(line):
            last, found[attribute[1]] = attribute[1], attribute[2]
        elif last:
            found[last] += f" {line.strip()}"
    return text, found


def cell(text: str) -> str:
    """A text in a table's cell: what Markdown would read is escaped, but for code, in which a bar ends no cell."""
    text = re.sub(r"\n(Parameters|Returns|Raises)\n-+\n", r" \1: ", text)
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    plain = (re.sub(r"([|\[\]*])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2])
    return "".join(part for pair in zip_longest(plain, parts[1::2], fillvalue="") for part in pair)

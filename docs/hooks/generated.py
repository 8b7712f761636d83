"""The reference of a job file, made from the classes that read one."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from mpifed.algorithms import ALGORITHMS
from mpifed.maths.objectives import OBJECTIVES
from mpifed.maths.regularizers import REGULARIZERS
from mpifed.maths.terms import TERMS
from mpifed.run.config import Job

MARKER = "<!-- generated: job -->"
_GIVEN = {"problem"}  # fields that the run sets


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The sections at the marker of a page."""
    if MARKER not in markdown:
        return markdown
    return markdown.replace(MARKER, "\n\n".join(f"## {title}\n\n{text}" for title, text in sections()))


def sections() -> Sequence[tuple[str, str]]:
    """(title, Markdown) of every table of a job, and of every model, algorithm, term and regularizer."""
    if importlib.util.find_spec("mpifed.run.explain") is not None:
        found: Sequence[tuple[str, str]] = importlib.import_module("mpifed.run.explain").reference()
        return found
    return list(_sections())


def _sections() -> Iterator[tuple[str, str]]:
    yield "Top level", _keys(Job)
    for name, field in Job.model_fields.items():
        table = next((part for part in (*typing.get_args(field.annotation), field.annotation) if _fields(part)), None)
        if table is not None:
            yield f"[{name}]", _keys(table)
    parts = {"model": OBJECTIVES, "algorithm": ALGORITHMS, "minimize": TERMS, "regularizer": REGULARIZERS}
    for table_name, known in parts.items():
        yield f"[{table_name}]", "`name` is one of " + ", ".join(f"`{name}`" for name in known) + "."
        for name, part in known.items():
            yield f'{table_name}: "{name}"', f"{inspect.getdoc(part)}\n\n{_keys(part)}"


def _fields(part: Any) -> list[str]:
    if dataclasses.is_dataclass(part):
        return [field.name for field in dataclasses.fields(part) if field.name not in _GIVEN]
    return list(getattr(part, "model_fields", {}))


def _keys(part: Any) -> str:
    """Name, type, default and meaning of every key, as a table."""
    written = {name: line for base in reversed(part.__mro__) for name, line in _written(base)}
    hints = typing.get_type_hints(part)
    rows = [f"| `{name}` | {_type(hints[name])} | {' | '.join(written[name])} |" for name in _fields(part)]
    return "\n".join(["| key | type | default | |", "| --- | --- | --- | --- |", *rows]) if rows else "No further keys."


def _written(part: type) -> Iterator[tuple[str, tuple[str, str]]]:
    """By field, (default, comment) as they stand in the source of a class."""
    if part.__module__.partition(".")[0] != "mpifed":
        return
    lines, _ = inspect.getsourcelines(part)
    body = ast.parse("".join(lines)).body[0]
    assert isinstance(body, ast.ClassDef)
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            _, _, comment = lines[(node.end_lineno or 1) - 1].partition("  # ")
            default = "" if node.value is None else f"`{ast.unparse(node.value)}`"
            yield node.target.id, (default.replace("|", r"\|"), comment.strip().replace("|", r"\|"))


def _type(hint: Any) -> str:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f"`{choice!r}`" for choice in arguments)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_type(part) for part in arguments if part is not type(None))
    names = {int: "integer", float: "number", str: "text", bool: "true or false", list: "list", dict: "table"}
    origin = typing.get_origin(hint) or hint
    return names.get(origin, f"`{getattr(origin, '__name__', origin)}`".replace("|", r"\|"))

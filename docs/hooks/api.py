"""The public names of mpifed, with their types: `python docs/hooks/api.py` writes docs/reference/api.md."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import get_origin

from mpifed.algorithms.algorithm import Algorithm

PAGE = Path(__file__).resolve().parents[1] / "reference/api.md"
BASES = ("LocalMethod", "Rows", "Columns", "Grid")
MODULES = ("mpifed", "mpifed.methods", "mpifed.testing")
HEAD = """# Public names

These names are kept: one that is taken away warns for a release before. All others may change.
`mpifed` trains and shows, `mpifed.methods` is what a method of one's own is written with, and `mpifed.testing` plays a
job round by round. What they do is in the [Python reference](python.md).
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for name in MODULES:
        module = import_module(name)
        lines = "\n".join(line for each in public(name) for line in described(each, getattr(module, each)))
        parts.append(f"\n## {name}\n\n```text\n{lines}\n```\n")
    return "".join(parts)


def public(name: str) -> list[str]:
    """The public names of a module, sorted: those that it lists, or what it defines."""
    module = import_module(name)
    listed = getattr(module, "__all__", None) or [
        each for each, value in vars(module).items()
        if each[0] != "_" and getattr(value, "__module__", None) == name
    ]  # fmt: skip
    return sorted(listed)


def described(name: str, value: object) -> Iterator[str]:
    """The lines of a name: its signature, and the members that a class declares itself."""
    if inspect.isclass(value) and not get_origin(value):  # to Python 3.10, `ndarray[Any, ...]` is a class too
        bases = [base.__name__ for base in value.__bases__ if base is not object]
        yield f"class {name}{f'({chr(44).join(bases)})'.replace(',', ', ') if bases else ''}"
        fields = {field.name for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
        hidden = (base for base in value.__bases__ if base.__name__ == "KeepsIterates")  # whose fields are of no page
        hints = {name: hint for kind in (*hidden, value) for name, hint in inspect.get_annotations(kind).items()}
        for each, hint in hints.items():
            if each[0] != "_" and (each in fields or hasattr(value, "_fields") or "ClassVar" in str(hint)):
                yield f"    {each}: {hint}{_default(value, each)}"
        if name != "Algorithm" and issubclass(value, Algorithm) and name not in BASES:
            return  # whose members are its own business
        for each, member in vars(value).items():
            function = getattr(member, "__func__", getattr(member, "fget", getattr(member, "func", member)))
            if each[0] != "_" and inspect.isfunction(function):
                yield f"    {each}{_signature(function)}"
    elif callable(value) and not isinstance(value, type) and not get_origin(value):
        yield f"{name}{_signature(value)}"
    else:
        yield name


def _default(kind: type, name: str) -> str:
    default = getattr(kind, "_field_defaults", {}).get(name, vars(kind).get(name))
    return (
        f" = {default!r}" if isinstance(default, (str, int, float, bool)) else " = ..." if default is not None else ""
    )


def _signature(function: object) -> str:
    try:
        text = str(inspect.signature(function))  # type: ignore[arg-type]  # whatever is callable
    except (TypeError, ValueError):
        return "(...)"
    return text.replace("'", "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

"""The command `mpifed data`. Imports next to nothing, so that `mpifed --help` is quick."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, Field
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Literal, Union, get_args, get_origin, get_type_hints

import click

from mpifed.core.attribute_docs import attribute_docs
from mpifed.core.contract import fields_of, own_class, own_module
from mpifed.core.errors import DataError, UsageError
from mpifed.core.expected import expected
from mpifed.core.nearest import nearest
from mpifed.core.tables import Table
from mpifed.core.text import on_screen

if TYPE_CHECKING:
    from mpifed.data.options import Options
    from mpifed.data.sources import Source


class _Sources(click.Group):
    """A command for each source, with options from the fields of its class; my_module:MyClass is a user's class."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from mpifed.data.sources import SOURCES

        return list(SOURCES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """The command of a source; UsageError if there is no source of that name."""
        from mpifed.data.sources import SOURCES, Source

        if cmd_name in SOURCES:
            return _command(cmd_name, SOURCES[cmd_name])
        if own_module(cmd_name) is None:
            raise UsageError(
                f"{cmd_name[:80]!r}: is not a source{nearest(cmd_name, SOURCES)}; give one of {', '.join(SOURCES)}, "
                "or a class as my_module:MyClass"
            )
        return _command(cmd_name, own_class(cmd_name, Source, cmd_name))


FILE = click.Path(path_type=Path)


@click.group(
    cls=_Sources, subcommand_metavar="SOURCE [OPTIONS]", short_help="Divide data among clients.",
    epilog="`mpifed data SOURCE --help` has the options.",
)  # fmt: skip
def data() -> None:
    """Divide data among clients: what each holds, in one HDF5 file.

    A source of your own, derived from mpifed.data.sources.Source, is given as my_module:MyClass; its fields are
    options.
    """


def _command(name: str, kind: type[Source]) -> click.Command:
    from mpifed.data.options import Options

    of_all = [field for field in _fields(Options) if field.name != "name"]
    common = {field.name for field in of_all}
    of_class = [field for field in _fields(kind) if field.name not in common]
    shared = {"missing"} if own_module(name) is None else set()  # of mpifed's own sources: a field by that option
    if taken := (common - shared) & {field.name for field in fields_of(kind)}:
        raise UsageError(f"{name}: {min(taken)}: every source has that option; rename the field")

    def make(**options: object) -> None:
        given = {key: str(value) for key, value in options.items() if value is not None}
        source: Source = kind(**_typed(name, kind, given))
        _make(Options(**_typed(name, Options, given), name=name, source=source))

    docs = attribute_docs(kind)
    text = inspect.cleandoc(kind.__doc__ or "")
    if "path" in docs:
        text += f"\n\nPATH: {docs['path']}"
    parameters = [_parameter(kind, field) for field in of_class] + [_parameter(Options, field) for field in of_all]
    return click.Command(name, params=parameters, callback=make, help=text, short_help=text.partition("\n\n")[0])


def _fields(kind: type) -> list[Field[object]]:
    """The fields that the command line can set: texts, numbers, paths and booleans."""
    hints = get_type_hints(kind, include_extras=True)
    return [field for field in fields_of(kind) if _is_plain(hints[field.name])]


def _is_plain(hint: object) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _is_plain(arguments[0])
    if origin in (Union, UnionType):
        return all(_is_plain(part) for part in arguments if part is not NoneType)
    return origin is Literal or hint in (str, int, float, bool, Path)


def _parameter(kind: type, field: Field[object]) -> click.Parameter:
    """The argument PATH, or an option, for a field; `_typed` validates its value."""
    required = field.default is MISSING and field.default_factory is MISSING
    if field.name == "path":
        return click.Argument(["path"], required=required, type=FILE)
    hint, name = get_type_hints(kind)[field.name], field.name.replace("_", "-")
    text = attribute_docs(kind).get(field.name, "")
    if not required and field.default not in (None, MISSING, False):
        text = f"{text}  [default: {field.default}]"
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if bool in parts:
        off = field.metadata.get("off", f"/--no-{name}")
        return click.Option([f"--{name}{off}"], is_flag=True, default=None, help=text)
    part = next(part for part in parts if part is not NoneType)
    known = click.Choice(get_args(part)) if get_origin(part) is Literal else None
    words = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
    metavar = None if known else field.metadata.get("metavar", words.get(part, "TEXT"))
    return click.Option([f"--{name}"], type=known, metavar=metavar, required=required, help=text)


def _typed(name: str, kind: type, given: Mapping[str, str]) -> Table:
    """The texts that are fields of a class, converted to their types; UsageError where one has another type."""
    from pydantic import TypeAdapter, ValidationError

    hints, typed, wrong = get_type_hints(kind, include_extras=True), Table(), []
    for field in fields_of(kind):
        if (text := given.get(field.name)) is None:
            continue
        try:
            typed[field.name] = TypeAdapter(hints[field.name]).validate_strings(text)
        except ValidationError as error:
            option = "PATH" if field.name == "path" else "--" + field.name.replace("_", "-")
            wrong += [f"{name}: {option} {text}: {expected(entry)}" for entry in error.errors()[:1]]
    if wrong:
        raise UsageError("\n".join(wrong))
    return typed


def _make(options: Options) -> None:
    """Make the data folder, and print a summary."""
    from mpifed.data.prepare import prepare
    from mpifed.data.summary import summary

    try:
        federation = prepare(options)
    except ModuleNotFoundError as error:
        raise UsageError(f"{options.name}: {error.name} is not installed; pip install 'mpifed[data]'") from error
    except MemoryError as error:
        why = str(error) or "none left"
        raise DataError(f"{options.name}: not enough memory ({why}); use less data") from error
    click.echo(on_screen(summary(federation)))

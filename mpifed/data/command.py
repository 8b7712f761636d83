"""The command `mpifed data`. Imports next to nothing, so that `mpifed --help` is quick."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, Field
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from mpifed.contract import attribute_docs, fields_of, own_class, own_module
from mpifed.core.errors import DataError, UsageError
from mpifed.core.tables import Table
from mpifed.text import nearest, on_screen

if TYPE_CHECKING:
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
_KINDS: dict[type, Any] = {str: str, int: int, float: float, Path: FILE, bool: bool}  # what click calls them


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

    own = [field.name for field in fields_of(kind)]
    common = [field for field in fields_of(Options) if field.name not in ("name", "source")]
    if taken := {*own}.intersection(field.name for field in common):
        raise UsageError(f"{name}: {min(taken)}: every source has that option; rename the field")
    parameters = [
        *(_parameter(kind, field) for field in fields_of(kind)),
        *(_parameter(Options, each) for each in common),
    ]

    def make(**options: object) -> None:
        from mpifed.data.prepare import prepare
        from mpifed.data.summary import summary

        given: Table = {key: value for key, value in options.items() if value not in (None, ())}
        source = kind(**{key: given.pop(key) for key in own if key in given})
        try:
            federation = prepare(Options(name=name, source=source, **given))
        except ModuleNotFoundError as error:
            raise UsageError(f"{name}: {error.name} is not installed; pip install 'mpifed[data]'") from error
        except MemoryError as error:
            raise DataError(f"{name}: not enough memory ({str(error)[:200] or 'none left'}); use less data") from error
        click.echo(on_screen(summary(federation)))

    text, docs = inspect.cleandoc(kind.__doc__ or ""), attribute_docs(kind)
    more = f"\n\nPATH: {docs['path']}" if "path" in docs else ""
    first = text.partition("\n\n")[0]
    known = [parameter for parameter in parameters if parameter]
    return click.Command(name, params=known, callback=make, help=text + more, short_help=first)


def _parameter(kind: type, field: Field[object]) -> click.Parameter | None:
    """The argument PATH, or an option, for a field; None for one that the command line cannot set."""
    hint, required = get_type_hints(kind)[field.name], field.default is MISSING and field.default_factory is MISSING
    if field.name == "path":
        several = get_origin(hint) is tuple
        return click.Argument(["path"], required=required, type=FILE, nargs=-1 if several else 1)
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    part = next((part for part in parts if part in _KINDS or get_origin(part) is Literal), None)
    if part is None:
        return None
    name, text = field.name.replace("_", "-"), attribute_docs(kind).get(field.name, "")
    if field.default not in (None, MISSING, False):
        text = f"{text}  [default: {field.default}]"
    if part is bool:
        off = field.metadata.get("off", f"/--no-{name}")
        return click.Option([f"--{name}{off}", field.name], is_flag=True, default=None, help=text)
    of, metavar = click.Choice(get_args(part)) if part not in _KINDS else _KINDS[part], field.metadata.get("metavar")
    return click.Option([f"--{name}", field.name], type=of, metavar=metavar, required=required, help=text)

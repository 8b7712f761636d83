"""The command `mpifed data`. Imports next to nothing, so that `mpifed --help` is quick."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, Field
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from mpifed.core.attribute_docs import attribute_docs
from mpifed.core.contract import fields_of, own_class, own_module
from mpifed.core.errors import DataError, UsageError
from mpifed.core.expected import expected
from mpifed.core.nearest import nearest
from mpifed.core.tables import Table
from mpifed.core.text import on_screen

if TYPE_CHECKING:
    from mpifed.data.sources import Source

SCALES = ("none", "unit", "minmax", "standard", "unit-rows")
PIXELS = ("digits", "mnist", "idx")  # by default scaled by `unit`: raw pixels diverge


def _grid(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """Parse RxC to (R, C)."""
    if value is None:
        return None
    rows, _, columns = value.partition("x")
    if rows.isdecimal() and columns.isdecimal() and len(value) < 20 and int(rows) and int(columns):
        return int(rows), int(columns)
    raise UsageError(f"--grid {value[:40]}: expected R groups of rows and C of columns as RxC, for example 5x2")


def _scales(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check a comma-separated list of scalings."""
    for kind in [] if value is None else value.split(","):
        if kind not in SCALES:
            raise UsageError(
                f"--scale {str(value)[:80]}: {kind[:40]!r} is not a scaling{nearest(kind, SCALES)}; expected one of "
                f"{', '.join(SCALES)}, "
                "or several of them, separated by commas"
            )
    return value


FILE = click.Path(path_type=Path)


def _of_all_sources() -> list[click.Parameter]:
    """The options of all sources: how data are divided, scaled and stored."""
    split = click.Choice(["rows", "columns", "grid"])
    missing = click.Choice(["error", "zero", "drop", "mean", "median"])
    return [
        click.Option(["--split"], type=split, help="What clients divide; not for natural clients and tables."),
        click.Option(["--clients"], type=int, help="Number of clients; --by, --grid and --map imply it."),
        click.Option(
            ["--min-rows"], type=int, metavar="N",
            help="Natural clients: join those of fewer than N training rows, counted before --client-test-fraction.",
        ),
        click.Option(
            ["--grid"], callback=_grid, metavar="RxC", help="R groups of rows times C groups of columns."
        ),
        click.Option(
            ["--map"], type=FILE,
            help="What each client holds: a CSV file `client,rows,columns`, e.g. `0,0-99 120,all`. Row indices start "
            "from 0 and do not count the test rows of --test-fraction. Or a CSV file `row,client` with a line for each "
            "row.",
        ),
        click.Option(
            ["--missing"], type=missing, default="error", show_default=True,
            help="--map, tables: how to treat cells that no client holds. csv and the like: gaps are an error, become "
            "zero (of one-hot categories: all zeros), drop their row, or become the mean or the median of the training "
            "rows, of categories the most frequent one.",
        ),
        click.Option(
            ["--partition"], default="iid", show_default=True,
            metavar="iid|dirichlet:A|classes:K|random-classes:K|shards:K",
            help="Distribution of the classes of --labels over groups of rows: equal, in Dirichlet(A) proportions, "
            "K classes each (all classes with equally many clients, or drawn by each client), or K runs each of the "
            "rows sorted by class. NIID-Bench's names are known too: homo, noniid-labeldir:A, noniid-#labelK, "
            "iid-diff-quantity:A.",
        ),
        click.Option(
            ["--skew"], metavar="A|lognormal:S|power:A",
            help="Draw the sizes of groups of rows from Dirichlet(A), or as exp of normal numbers with deviation S, or "
            "make them k^-A for k = 1, 2, ...",
        ),
        click.Option(
            ["--min-samples"], type=int, default=1, show_default=True, metavar="N",
            help="Draw the partition again until every group of rows has so many.",
        ),
        click.Option(
            ["--feature-noise"], type=float, metavar="V",
            help="A shift of features: add Gaussian noise of variance V n / N to scaled rows of client n = 1, ..., N.",
        ),
        click.Option(
            ["--labels"], default="all", show_default=True, metavar="all|even-odd|class:K|below:K",
            help="The classes: every label, odd against even, label K against the rest, or labels below K against "
            "the rest.",
        ),
        click.Option(
            ["--scale"], callback=_scales, metavar="|".join(SCALES),
            help="unit: divide by the largest value. minmax, standard: each column to [0, 1], or to mean 0 and "
            "variance 1. unit-rows: each row to norm 1. Several in sequence: minmax,unit-rows.  [default: unit for "
            f"{', '.join(PIXELS)}, else none]",
        ),
        click.Option(["--test-fraction"], type=float, metavar="F", help="Hold out this fraction of rows for testing."),
        click.Option(
            ["--client-test-fraction"], type=float, metavar="F",
            help="Hold out this fraction of each client's rows, with which that client tests; where rows are divided.",
        ),
        click.Option(
            ["--seed"], type=int, default=0, show_default=True, help="Seed of partition, test rows and synthetic data."
        ),
        click.Option(["--origin"], metavar="TEXT", help="Where the data come from; stored and shown."),
        click.Option(["--out"], type=FILE, required=True, help="Folder for the files."),
        click.Option(["--force"], is_flag=True, help="Replace the data in --out."),
    ]  # fmt: skip


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


@click.group(
    cls=_Sources, subcommand_metavar="SOURCE [OPTIONS]", short_help="Divide data among clients.",
    epilog="`mpifed data SOURCE --help` has the options.",
)  # fmt: skip
def data() -> None:
    """Divide data among clients: one shard per client, as HDF5 files.

    A source of your own, derived from mpifed.data.sources.Source, is given as my_module:MyClass; its fields are
    options.
    """


def _command(name: str, kind: type[Source]) -> click.Command:
    def make(**options: Any) -> None:  # as click gives them
        values = {field.name: options.pop(field.name) for field in of_class}
        _make(name, _source(name, kind, values, options["missing"]), **options)

    parameters = _of_all_sources()
    common = {parameter.name for parameter in parameters}
    of_class = [field for field in _fields(kind) if field.name not in common]
    given = {"missing"} if own_module(name) is None else set()  # of mpifed's own sources: a field by that option
    if taken := (common - given) & {field.name for field in fields_of(kind)}:
        raise UsageError(f"{name}: {min(taken)}: every source has that option; rename the field")
    docs = attribute_docs(kind)
    text = inspect.cleandoc(kind.__doc__ or "")
    if "path" in docs:
        text += f"\n\nPATH: {docs['path']}"
    parameters = [_parameter(kind, field, docs.get(field.name, "")) for field in of_class] + parameters
    return click.Command(name, params=parameters, callback=make, help=text, short_help=text.partition("\n\n")[0])


def _fields(kind: type[Source]) -> list[Field[object]]:
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


def _parameter(kind: type[Source], field: Field[object], text: str) -> click.Parameter:
    """The argument PATH, or an option, for a field; `_source` validates its value."""
    required = field.default is MISSING and field.default_factory is MISSING
    if field.name == "path":
        return click.Argument(["path"], required=required, type=FILE)
    hint, name = get_type_hints(kind)[field.name], field.name.replace("_", "-")
    if not required and field.default not in (None, MISSING, False):
        text = f"{text}  [default: {field.default}]"
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if bool in parts:
        return click.Option([f"--{name}/--{field.metadata.get('off', 'no-' + name)}"], default=None, help=text)
    (part,) = (part for part in parts if part is not NoneType)
    known = click.Choice(get_args(part)) if get_origin(part) is Literal else None
    words = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
    return click.Option([f"--{name}"], type=known, metavar=None if known else words.get(part, "TEXT"),
                        required=required, help=text)  # fmt: skip


def _source(name: str, kind: type[Source], options: Table, missing: str) -> Source:
    """The source, from the options that were given, converted to the types of its fields."""
    from pydantic import TypeAdapter, ValidationError

    texts = {key: str(value) for key, value in options.items() if value is not None}
    if "missing" in (field.name for field in fields_of(kind)):
        texts["missing"] = missing
    try:
        source: Source = TypeAdapter(kind).validate_strings(texts)
    except ValidationError as error:
        lines = [f"{_spelled(str(entry['loc'][0]))} {texts.get(str(entry['loc'][0]), '')}: {expected(entry)}"
                 for entry in error.errors()]  # fmt: skip
        raise UsageError("\n".join(f"{name}: {line}" for line in lines)) from error
    return source


def _spelled(option: str) -> str:
    """The option as spelled on the command line."""
    return "PATH" if option == "path" else "--" + option.replace("_", "-")


def _make(name: str, source: Source, scale: str | None, **options: Any) -> None:  # as click gives them
    """Make the data folder, and print a summary."""
    from mpifed.data.prepare import Options, prepare
    from mpifed.data.summary import summary

    scale = scale or ("unit" if name in PIXELS else "none")
    try:
        federation = prepare(Options(name=name, source=source, scale=scale, **options))
    except ModuleNotFoundError as error:
        raise UsageError(f"{name}: {error.name} is not installed; pip install 'mpifed[data]'") from error
    except MemoryError as error:
        why = str(error) or "none left"
        raise DataError(f"{name}: not enough memory ({why}); use less data") from error
    click.echo(on_screen(summary(federation)))

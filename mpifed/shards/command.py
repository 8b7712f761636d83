"""The command `mpifed data`. Imports next to nothing, so that `mpifed --help` is quick."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mpifed.core.contract import own_class, own_module
from mpifed.core.errors import DataError, UsageError
from mpifed.core.expected import expected

if TYPE_CHECKING:
    from mpifed.shards.sources import Source
    from mpifed.shards.store import Federation

SOURCES = ("digits", "mnist", "newsgroups", "covtype", "svmlight", "csv", "tables", "synthetic")
SCALES = ("none", "unit", "minmax", "standard", "unit-rows")
PIXELS = ("digits", "mnist")  # scaled by `unit` unless told otherwise: raw pixels ruin the papers' step sizes
OF_SOURCES = (
    "path", "test", "dense", "id", "label", "key", "remove", "samples", "features", "noise", "task", "classes", "dtype",
    "max_unpacked", "max_features",
)  # fmt: skip


def _grid(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """(R, C) from RxC."""
    if value is None:
        return None
    rows, _, columns = value.partition("x")
    if rows.isdecimal() and columns.isdecimal() and len(value) < 20 and int(rows) and int(columns):
        return int(rows), int(columns)
    raise UsageError(f"--grid {value[:40]}: expected R groups of rows and C of columns as RxC, for example 5x2")


def _scales(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Names of scalings, separated by commas."""
    for kind in [] if value is None else value.split(","):
        if kind not in SCALES:
            raise UsageError(
                f"--scale {str(value)[:80]}: {kind[:40]!r} is no scaling; expected one of {', '.join(SCALES)}, "
                "or several in turn, separated by commas"
            )
    return value


def _source_name(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """The name of a source, or of a class of the user's own."""
    if value not in SOURCES and own_module(value) is None:
        raise UsageError(
            f"{value[:80]!r}: is no source; give one of {', '.join(SOURCES)}, or your own as my_module:MyClass"
        )
    return value


def _settings(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """The fields of a source of the user's own, as text."""
    found = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"--set {value[:80]}: expected field=value")
        found[key] = text
    return found


FILE = click.Path(path_type=Path)


@click.command()
@click.argument("name", metavar="SOURCE", callback=_source_name)
@click.argument("path", required=False, type=FILE)
@click.option("--split", type=click.Choice(["rows", "columns", "grid"]), help="What clients divide up; not for tables.")
@click.option("--clients", type=int, help="Number of clients; with --grid or --map it follows from them.")
@click.option("--grid", callback=_grid, metavar="RxC", help="R groups of rows times C groups of columns.")
@click.option(
    "--map",
    type=FILE,
    help="Who holds what: a CSV file `client,rows,columns`, e.g. `0,0-99 120,all`, or a TOML file with a table "
    '[[client]] for each, e.g. rows = ["0-99", 120], columns = "all". Rows are numbered from 0, after test rows have '
    "been taken out by --test-fraction.",
)
@click.option(
    "--missing",
    type=click.Choice(["error", "zero"]),
    default="error",
    show_default=True,
    help="--map, tables: what a cell is that nobody holds.",
)
@click.option(
    "--partition",
    default="iid",
    show_default=True,
    metavar="iid|dirichlet:A|classes:K",
    help="How the classes of --labels are spread over groups of rows: alike, in Dirichlet(A) proportions, or K each.",
)
@click.option("--skew", type=float, metavar="A", help="Draw the sizes of groups of rows from Dirichlet(A).")
@click.option(
    "--labels",
    default="all",
    show_default=True,
    metavar="all|even-odd|class:K|below:K",
    help="What is learnt: every label, odd against even, label K against the rest, or labels below K against the rest.",
)
@click.option(
    "--scale",
    callback=_scales,
    metavar="|".join(SCALES),
    help="unit: divide by the largest value. minmax, standard: each column to [0, 1], or to mean 0 and variance 1. "
    "unit-rows: each row to norm 1. Several in turn: minmax,unit-rows.  "
    "[default: unit for digits and mnist, else none]",
)
@click.option("--test-fraction", type=float, metavar="F", help="Hold this share of the rows out for testing.")
@click.option("--pack", type=int, default=1, show_default=True, metavar="K", help="Clients a file.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of partition, test rows and synthetic data.")
@click.option("--out", type=FILE, required=True, help="Folder for the files.")
@click.option("--force", is_flag=True, help="Replace the data in --out.")
@click.option("--test", type=FILE, help="svmlight, csv: file of test rows.")
@click.option("--dense/--sparse", default=None, help="svmlight: how to store.  [default: by the share of zeros]")
@click.option("--id", metavar="NAME", help="tables: name of the column of identifiers.")
@click.option(
    "--label", help="csv: name or position of the label's column  [default: -1, the last].  tables: its name."
)
@click.option(
    "--key",
    type=FILE,
    help="tables: file with the clients' secret key, by which identifiers are hashed.  [default: a new one, forgotten]",
)
@click.option(
    "--remove", metavar="PARTS", help="newsgroups: headers,footers,quotes, or some, or none.  [default: headers]"
)
@click.option(
    "--task",
    type=click.Choice(["auto", "classification", "regression"]),
    help="svmlight, csv, tables, synthetic: what labels are.  [default: auto, classes if they are integers; "
    "synthetic: regression]",
)
@click.option("--samples", type=int, help="synthetic: rows  [default: 1000].  covtype: so many, drawn  [default: all].")
@click.option("--features", type=int, help="synthetic: columns.  [default: 20]")
@click.option("--noise", type=float, help="synthetic: how much of it; scores have variance 1.  [default: 0.1]")
@click.option("--classes", type=int, help="synthetic: classes of --task classification.  [default: 10]")
@click.option(
    "--max-unpacked", type=click.FloatRange(min=0, min_open=True), metavar="GIB",
    help="svmlight, csv, tables: what a packed file may unpack to.  [default: 100 times its size, at least 0.25]",
)  # fmt: skip
@click.option(
    "--max-features", type=click.IntRange(min=1), metavar="N",
    help="svmlight: features there may be.  [default: as many as there are values, at least 16777216]",
)  # fmt: skip
@click.option(
    "--set", "settings", multiple=True, callback=_settings, metavar="FIELD=VALUE", help="my_module:MyClass: a field."
)
@click.option("--dtype", type=click.Choice(["float32", "uint8"]), help="synthetic: of the values.  [default: float32]")
def data(name: str, scale: str | None, settings: dict[str, str], **options: Any) -> None:
    """Divide data among clients: one shard a client, as HDF5 files.

    \b
    digits               1,797 images, comes with scikit-learn
    mnist [FOLDER]       60,000 images, from IDX files or downloaded
    newsgroups [FOLDER]  11,314 texts of 20 groups, from 20news-bydate.tar.gz or downloaded; --labels below:10
    covtype [FOLDER]     581,012 patches of forest, from covtype.data.gz or downloaded; --labels class:2
    svmlight FILE        `label column:value ...`
    csv FILE             numbers, the label in the last column
    tables FOLDER        one CSV file a client, of overlapping samples and features; --id NAME --label NAME
    synthetic            drawn by --samples, --features ...; regression has a known optimum
    my_module:MyClass    your own, derived from mpifed.shards.sources.Source; --set FIELD=VALUE
    """
    from mpifed.shards.prepare import Options, prepare

    of_source = {key: value for key in OF_SOURCES if (value := options.pop(key)) is not None}
    if own_module(name) is not None:
        source = _own(name, of_source | settings)
    elif settings:
        raise UsageError(f"--set: is for a source of your own; {name} has options")
    else:
        source = _source(name, of_source, options["missing"])
    scale = scale or ("unit" if name in PIXELS else "none")
    try:
        federation = prepare(Options(name=name, source=source, scale=scale, **options))
    except ModuleNotFoundError as error:
        raise UsageError(f"{name}: {error.name} is not installed; pip install 'mpifed[data]'") from error
    except MemoryError as error:
        why = str(error) or "none is left"
        raise DataError(f"{name}: more memory is needed than there is ({why}); make it from less data") from error
    click.echo(_summary(federation))


def _spelled(option: str) -> str:
    """As it is on the command line."""
    return "PATH" if option == "path" else "--" + option.replace("_", "-")


def _source(name: str, options: dict[str, Any], missing: str) -> Source:
    """The source of that name, with those of its options that were given."""
    from mpifed.shards.sources import SOURCES

    kind: Any = SOURCES[name]
    known = {field.name: field for field in fields(kind)}
    for option in options:
        if option not in known:
            raise UsageError(
                f"{_spelled(option)}: {name} has no such option; it has "
                f"{', '.join(map(_spelled, sorted(set(known) & set(OF_SOURCES)))) or 'none of its own'}"
            )
    for option, field in known.items():
        if field.default is MISSING and option not in options:
            what = "the file or folder" if option == "path" else f"--{option}"
            raise UsageError(f"{name}: {what} is missing; see `mpifed data --help`")
    if "missing" in known:
        options = options | {"missing": missing}
    source: Source = kind(**options)
    return source


def _own(name: str, options: dict[str, Any]) -> Source:
    """A source of the user's own, its fields in the types that it annotates."""
    from pydantic import TypeAdapter, ValidationError

    from mpifed.shards.sources import Source

    kind: Any = own_class(name, Source, name)
    known = [field.name for field in fields(kind)]
    for key in options:
        if key not in known:
            raise UsageError(f"--set {key}: {name} has no such field; it has {', '.join(known) or 'none'}")
    try:
        source: Source = TypeAdapter(kind).validate_strings({key: str(value) for key, value in options.items()})
    except ValidationError as error:
        lines = [f"--set {'.'.join(map(str, one['loc']))}: {expected(one)}" for one in error.errors()]
        raise UsageError("\n".join(f"{name}: {line}" for line in lines)) from error
    return source


def _summary(federation: Federation) -> str:
    """A few lines about what was made."""
    counts, widths = federation.counts, federation.widths
    lines = {
        "rows": f"{federation.samples} to train on, {federation.test_samples} to test with",
        "features": f"{federation.features}{', sparse' if federation.sparse else ''}",
        "classes": f"{federation.classes}" if federation.classes else "none (real targets)",
        "clients": f"{federation.clients}, split by {federation.split}",
        "shards": f"{counts.min()} to {counts.max()} rows, {widths.min()} to {widths.max()} features",
        "bytes": f"{federation.nbytes.sum()} in shards, the largest {federation.nbytes.max()}",
        "folder": f"{federation.path}",
    }
    missing = federation.provenance.get("missing_cells")
    if missing:
        lines["missing"] = f"{missing} cells, held by nobody, which count as zero"
    if federation.optimum:
        lines["optimum"] = f"{federation.optimum['loss']:.6g} = 1/2 mean (x . w - y)^2, without an intercept"
    return "\n".join(f"{name:9}{value}" for name, value in lines.items())

"""The command `mpifed plot`. Imports next to nothing, so that `mpifed --help` is quick."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mpifed.arguments import FOLDER, Finite
from mpifed.core.errors import UsageError

if TYPE_CHECKING:
    from mpifed.plots.style import SizeName

_DEFAULTS: dict[str, object] = {"x": (), "y": (), "band": "range", "relative_to": None}  # of curves


def _joined(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, list[Path]]:
    """Parse NAME=FOLDER[,FOLDER...], repeated; a folder whose own name has a comma is taken as it is."""
    joined: dict[str, list[Path]] = {}
    for value in values:
        name, equals, folders = value.partition("=")
        if not equals or not name.strip() or not folders.strip(", "):
            raise UsageError(
                f"--label {value[:80]}: expected NAME=FOLDER or NAME=FOLDER,FOLDER, as in --label FedAvg=runs/a,runs/b"
            )
        parts = [folders] if Path(folders).exists() else [part.strip() for part in folders.split(",") if part.strip()]
        if name.strip() in joined:
            raise UsageError(f"--label {name.strip()[:80]}: twice; name all folders of a line at once, between commas")
        joined[name.strip()] = [*map(Path, parts)]
    return joined


@click.command(short_help="Draw runs, sweeps or data.")
@click.argument("folders", nargs=-1, type=FOLDER, metavar="RUN... SWEEP... | DATA")
@click.option("--out", type=FOLDER, help="Figure to write: .png, .pdf, .svg and others.")
@click.option(
    "--label", "joined", multiple=True, callback=_joined, metavar="NAME=FOLDER[,FOLDER...]",
    help="Draw these runs as one line of that name, with a band where they are several; may be repeated.",
)  # fmt: skip
@click.option(
    "--x", multiple=True, metavar="COLUMN",
    help="Horizontal axis: round, elapsed_s, simulated_s, bytes, gradients, epsilon or another column of the history; "
    "may be repeated.  [default: those six, where measured]",
)  # fmt: skip
@click.option(
    "--y", multiple=True, metavar="COLUMN",
    help="Vertical axis: a column of the history; may be repeated.  [default: losses, accuracy and certificates]",
)  # fmt: skip
@click.option(
    "--band", type=click.Choice(["range", "deviation", "interval", "none"]), default="range", show_default=True,
    help="Around the mean of several seeds: least to largest, standard deviation, or 95 % interval of the mean.",
)  # fmt: skip
@click.option(
    "--size", type=click.Choice(["screen", "column", "page"]), default="screen", show_default=True,
    help="For print: column is 3.4 inches wide, page 7, with text of 8 points.",
)  # fmt: skip
@click.option(
    "--relative-to", type=Finite(min=0, min_open=True), metavar="OPTIMUM",
    help="Draw (objective - OPTIMUM) / OPTIMUM instead of the loss.",
)  # fmt: skip
def plot(
    folders: tuple[Path, ...],
    out: Path | None,
    joined: dict[str, list[Path]],
    size: SizeName,
    **curves: Any,  # as `figure` takes them
) -> None:
    """Curves of runs and sweeps, or a picture of how data are divided among clients.

    A sweep counts as its runs. Runs that differ in nothing but their seed are one line, their mean, with a band whose
    meaning the legend says; labels hold only what sets lines apart.

    Seconds are those of the training and, for jobs with [simulated_network], those of the simulated deployment.

    Of DATA, a folder that mpifed data made: how many rows and which classes or targets each client has; where clients
    have other columns, how many of these.
    """
    if not folders and not joined:
        raise click.UsageError("give folders of runs or sweeps, or of data")
    if out is None:
        raise click.UsageError("give --out FIGURE")
    if any((folder / "federation.h5").exists() for folder in folders):
        if len(folders) > 1 or joined or curves != _DEFAULTS:
            raise click.UsageError("data are drawn one folder at a time, with --out and --size alone")
        from mpifed.data.store import open_federation
        from mpifed.plots.partition import partition

        picture = partition(open_federation(folders[0]), size)
    else:
        from mpifed.plots.curves import figure

        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always", UserWarning)
            picture = figure(folders, joined=joined, size=size, **curves)
        for note in notes:
            click.echo(note.message, err=True)
    from mpifed.plots.style import save

    save(picture, out)
    click.echo(f"figure: {out}")

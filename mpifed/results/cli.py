"""The command `mpifed compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mpifed.arguments import FOLDER
from mpifed.text import screen_width, shown_lines

if TYPE_CHECKING:
    from mpifed.results.choose import Choice
    from mpifed.results.compare import Comparison


@click.command(short_help="Compare runs and sweeps.")
@click.argument("runs", nargs=-1, required=True, type=FOLDER, metavar="RUN|SWEEP...")
@click.option(
    "--to", "targets", multiple=True, metavar="COLUMN>=NUMBER",
    help="Rounds, bytes and seconds until a column of the history is at least, or at most (<=), a number; in quotes; "
    "may be repeated.",
)  # fmt: skip
@click.option(
    "--against", metavar="NAME",
    help="Baseline of the paired comparison: the name of a row, or a run.  [default: the best]",
)  # fmt: skip
@click.option("--best", is_flag=True, help="The best setting by the columns of --by, and which are on their front.")
@click.option(
    "--by", multiple=True, metavar="COLUMN",
    help="A column to choose by, or to compare in pairs; may be repeated. --best: the next column decides ties; by "
    "default the objective, with settings that meet their limits first.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def compare(
    runs: tuple[Path, ...], targets: tuple[str, ...], against: str | None, best: bool, by: tuple[str, ...],
    as_json: bool,
) -> None:  # fmt: skip
    """How the points of sweeps and other runs ended, which differ, and which settings were best.

    Runs that differ in their seed alone share a line, with mean and standard deviation, named by what sets it apart.
    Where at least two share three seeds, they are compared in pairs over equal seeds, by the test accuracy or else the
    objective: mean difference, its 95 % interval, and the p value of a paired t test.

    --best gives the settings to go on with, as --set arguments. On the front of several columns (the Pareto front) is
    every setting than which no other is as good by all of them, and better by one.
    """
    if best and (targets or against):
        raise click.UsageError(f"{'--to' if targets else '--against'} goes without --best")
    from mpifed.results.choose import choose
    from mpifed.results.compare import compare as compared
    from mpifed.results.frames import read

    found: Choice | Comparison
    found = choose(read(*runs), by) if best else compared(*runs, by=by, against=against, to=targets)
    click.echo(json.dumps(found.table(), indent=2) if as_json else shown_lines(found.text(screen_width())))

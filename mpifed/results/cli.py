"""The command `mpifed compare`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from mpifed.arguments import FOLDER


@click.command(short_help="Compare runs and sweeps.")
@click.argument("runs", nargs=-1, required=True, type=FOLDER, metavar="RUN|SWEEP...")
@click.option(
    "--to", "targets", multiple=True, metavar="COLUMN>=NUMBER",
    help="Rounds, bytes and seconds until a column of the history is at least, or at most (<=), a number; in quotes; "
    "may be repeated.",
)  # fmt: skip
@click.option(
    "--against", metavar="LABEL",
    help="Baseline of the paired comparison: a label, or a run.  [default: the best]",
)  # fmt: skip
@click.option("--select", type=click.Choice(["best", "pareto"]), help="The best by one column, or by several.")
@click.option(
    "--by", multiple=True, metavar="COLUMN[:WEIGHT][~TOLERANCE]",
    help="A column to choose by, or to compare in pairs; may be repeated, or several between commas. ~1% and ~0.005: "
    "smaller differences are ties. best: the next column decides ties; by default the objective, with settings that "
    "meet their limits first. pareto: by default objective, test accuracy, simulated or training seconds, bytes up.",
)  # fmt: skip
@click.option("--max", "maximize", is_flag=True, help="Maximize the last column; accuracies are always maximized.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def compare(
    runs: tuple[Path, ...],
    targets: tuple[str, ...],
    against: str | None,
    select: str | None,
    by: tuple[str, ...],
    maximize: bool,
    as_json: bool,
) -> None:
    """How the points of sweeps and other runs ended, which differ, and which settings were best.

    Runs that differ in their seed alone share a line, with mean and standard deviation. Where at least two settings
    share three seeds, they are compared in pairs over equal seeds, by the test accuracy or else the objective: mean
    difference, its 95 % interval, and the p value of a paired t test.

    --select pareto recommends, of the settings that no other dominates (the Pareto front), the one closest to the
    best values of all criteria, by Grey Relational Analysis.
    """
    if maximize and select != "best":
        raise click.UsageError("--max goes with --select best; with --select pareto only accuracies are maximized")
    if select and (targets or against):
        raise click.UsageError(f"{'--to' if targets else '--against'} goes without --select")
    columns = [name.strip() for text in by for name in text.split(",")]
    if not select and (weighted := [name for name in columns if ":" in name or "~" in name]):
        raise click.UsageError(
            f"--by {weighted[0]}: weights and tolerances go with --select best or --select pareto; give a column alone"
        )
    from mpifed.results import best, compare, comparison, pareto, select_text

    where, criteria, terminal = runs[0] if len(runs) == 1 else runs, ",".join(by) or None, sys.stdout.isatty()
    if select == "pareto":
        text = _json(pareto.select(where, criteria)) if as_json else select_text.pareto_text(where, criteria, terminal)
    elif select:
        chosen = criteria, maximize or None
        text = _json(best.select(where, *chosen)) if as_json else select_text.best_text(where, *chosen)
    elif as_json:
        text = _json(comparison.as_json(comparison.compared(where, columns, against, targets)))
    else:
        text = compare.compare_text(where, terminal, columns, against, targets)
    click.echo(text)


def _json(value: object) -> str:
    return json.dumps(value, indent=2)

"""The commands `submit` and `status`; what they need is imported when they run."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import click

from mpifed.core.errors import DataError
from mpifed.core.text import shown, wrong_line

_NAME_BYTES, _PATH_BYTES = 255, 4000  # of file systems


class _Path(click.Path):
    """A path that can be written into a line of a script or message, and be looked for."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value)
        if why := wrong_line(text):
            self.fail(f"{shown(text)!r} {why}", param, ctx)
        longest = max(len(os.fsencode(part)) for part in text.split("/"))
        if longest > _NAME_BYTES or len(os.fsencode(text)) > _PATH_BYTES:
            self.fail(f"{shown(text)!r} is too long: {_NAME_BYTES} bytes from / to /, {_PATH_BYTES} in all", param, ctx)
        return super().convert(value, param, ctx)


class Finite(click.FloatRange):
    """A number, and neither infinite nor none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{found} is no finite number", param, ctx)
        return found


class _Submit(click.Command):
    """A command that says where options go which it does not know."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The arguments."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(f"{error.format_message()} Options of sbatch go after `--`.", ctx) from error


FOLDER = _Path(path_type=Path)


@click.command(cls=_Submit)
@click.argument("job", type=FOLDER)
@click.argument("options", nargs=-1, metavar="[-- OPTION OF SBATCH...]")
@click.option("--set", "changes", multiple=True, metavar="TABLE.KEY=VALUE", help="Change a setting; may be repeated.")
@click.option("--out", type=FOLDER, help="Folder of the results.  [default: runs/NAME]")
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--ntasks-per-node", "tasks", type=click.IntRange(min=1),
    help="Ranks on each node.  [default: as many as --gpus-per-node, else 1]",
)  # fmt: skip
@click.option("--time", "limit", metavar="T", help="As sbatch has it, 12:00:00.  [default: from the forecast]")
@click.option("--partition", metavar="NAME", envvar="SBATCH_PARTITION", help="[default: the cluster's]")
@click.option("--account", metavar="NAME")
@click.option("--gpus-per-node", "gpus", type=click.IntRange(min=1), help="One rank for each.")
@click.option("--array", is_flag=True, help="Of a sweep: a job array, one task for each point.")
@click.option("--throttle", type=click.IntRange(min=1), metavar="K", help="At most K tasks of the array at a time.")
@click.option("--sbatch", "more", multiple=True, metavar="OPTION", help="Any option of sbatch: --sbatch --qos=high.")
@click.option("--forecast/--no-forecast", default=True, help="Rehearse a round here, for time and memory.")
@click.option("--no-check", "unchecked", is_flag=True, help="As that of mpifed run.")
@click.option("--dry-run", is_flag=True, help="Show the batch script and what is found; works without Slurm.")
def submit(
    job: Path,
    options: tuple[str, ...],
    changes: tuple[str, ...],
    out: Path | None,
    nodes: int,
    tasks: int | None,
    limit: str | None,
    partition: str | None,
    account: str | None,
    gpus: int | None,
    array: bool,
    throttle: int | None,
    more: tuple[str, ...],
    forecast: bool,
    unchecked: bool,
    dry_run: bool,
) -> None:
    """Submit a job to Slurm; it checkpoints before its time is up, is queued again and goes on, until it is done.

    Time and memory come from the forecast of `mpifed check`, and are checked against the cluster. A run that is queued
    or running, or finished, is not submitted again; of a sweep's array, only the points that are left.
    """
    from mpifed.batch.asked import Asked
    from mpifed.batch.submit import submit as submitted

    asked = Asked(
        job, changes, out, nodes, tasks or gpus or 1, limit, partition, account, gpus or 0, array, throttle, forecast,
        dry_run, (*more, *options), tuple(sys.argv[1:]), unchecked,
    )  # fmt: skip
    for line in submitted(asked):
        click.echo(line)


@click.command()
@click.argument("folders", metavar="RUN|SWEEP...", nargs=-1, required=True, type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="A list of objects.")
def status(folders: tuple[Path, ...], as_json: bool) -> None:
    """Which points are done, running, queued, resumable or failed, and why; and what to do next.

    A folder that holds runs or sweeps stands for all of them. Slurm is asked where it is there; without it, the files
    alone tell. The exit code is 0 whatever became of the runs (--json has it: "counts", and "exit" of each point), and
    3 where a folder is none of a run or cannot be read: those are named at the end, after all the others.
    """
    from mpifed.batch.status import described, looks, text

    found, wrong = looks(folders)
    if found:
        click.echo(json.dumps([described(one) for one in found], indent=2) if as_json else text(found))
    if wrong:
        raise DataError("\n".join(wrong))

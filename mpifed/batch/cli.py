"""The commands `submit` and `status`; their modules are imported only when they run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from mpifed.arguments import FOLDER
from mpifed.core.errors import DataError
from mpifed.core.text import on_screen, screen_width


class _Submit(click.Command):
    """A command whose error for an unknown option says where options of sbatch go."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(f"{error.format_message()} Options of sbatch go after `--`.", ctx) from error


@click.command(cls=_Submit, short_help="Submit a job to Slurm.")
@click.argument("job", type=FOLDER)
@click.argument("options", nargs=-1, metavar="[-- OPTION OF SBATCH...]")
@click.option("--set", "changes", multiple=True, metavar="TABLE.KEY=VALUE", help="Change a setting; may be repeated.")
@click.option("--out", type=FOLDER, help="Folder of the results.  [default: runs/NAME]")
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Nodes.")
@click.option(
    "--ntasks-per-node", "tasks", type=click.IntRange(min=1),
    help="Ranks on each node.  [default: as many as --gpus-per-node, else 1]",
)  # fmt: skip
@click.option("--time", metavar="T", required=True, help="Limit of each start, in a format of sbatch: 12:00:00.")
@click.option("--partition", metavar="NAME", envvar="SBATCH_PARTITION", help="Partition.  [default: the cluster's]")
@click.option("--account", metavar="NAME", help="Account to charge.  [default: yours]")
@click.option("--gpus-per-node", "gpus", type=click.IntRange(min=1), help="One rank runs on each GPU.")
@click.option("--array", is_flag=True, help="Submit a sweep as a job array, one task per point.")
@click.option("--throttle", type=click.IntRange(min=1), metavar="K", help="At most K tasks of the array at a time.")
@click.option("--sbatch", "more", multiple=True, metavar="OPTION", help="Any option of sbatch: --sbatch --qos=high.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print what is found, and to standard output the batch script alone; needs no Slurm.",
)
def submit(
    tasks: int | None, gpus: int | None, dry_run: bool, more: tuple[str, ...], options: tuple[str, ...],
    **given: Any,  # fields of SubmitRequest, in their types
) -> None:  # fmt: skip
    """Submit a job to Slurm; it checkpoints before its time limit, is requeued and resumes, until it is done.

    Whether the cluster takes the job `sbatch --test-only` says. A run that is queued, running or finished is not
    submitted again; a sweep's array has only the points that are not.
    """
    from mpifed.batch.submit import SubmitRequest
    from mpifed.batch.submit import dry_run as tried
    from mpifed.batch.submit import submit as submitted

    request = SubmitRequest(
        tasks=tasks or gpus or 1, gpus=gpus or 0, options=(*more, *options),
        command=tuple(sys.argv[1:]), **given,
    )  # fmt: skip
    if dry_run:
        notes, script = tried(request)
        click.echo("\n".join(notes), err=True)
        click.echo(script, nl=False)
        return
    for line in submitted(request):
        click.echo(line)


@click.command(short_help="The states of runs and sweeps, and what is next.")
@click.argument("folders", metavar="RUN|SWEEP|FOLDER...", nargs=-1, required=True, type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="A list of objects.")
def status(folders: tuple[Path, ...], as_json: bool) -> None:
    """Which points are done, running, queued, resumable or failed, and why; and what to do next.

    Of any other folder all runs below it are listed, the points of sweeps included, a line for each. Slurm is queried
    where it is installed; elsewhere the status follows from the files alone. The exit code is 0 whether runs failed or
    not (--json has "counts", and "exit" of each point), and 3 if a folder is not that of a run or cannot be read: such
    folders are named at the end.
    """
    from mpifed.batch.status import described, statuses_of, text

    places, errors = statuses_of(folders)
    if as_json and places:
        click.echo(json.dumps([described(status) for place in places for status in place.statuses], indent=2))
    elif places:
        click.echo(on_screen(text(places, screen_width())))
    if errors:
        raise DataError("\n".join(errors))

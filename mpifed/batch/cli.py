"""The command `submit`; its modules are imported only when it runs."""

from __future__ import annotations

import sys
from typing import Any

import click

from mpifed.arguments import FOLDER


@click.command(short_help="Submit a job to Slurm.", context_settings={"ignore_unknown_options": True})
@click.argument("job", type=FOLDER)
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTION OF SBATCH...]")
@click.option("--set", "changes", multiple=True, metavar="TABLE.KEY=VALUE", help="Change a setting; may be repeated.")
@click.option("--out", type=FOLDER, help="Folder of the results.  [default: runs/NAME]")
@click.option("--array", is_flag=True, help="Submit a sweep as a job array, one task per point.")
@click.option("--throttle", type=click.IntRange(min=1), metavar="K", help="At most K tasks of the array at a time.")
@click.option("--wait", is_flag=True, help="Return when the job has ended.")
@click.option("--dry-run", is_flag=True, help="Print the command of sbatch alone; needs no Slurm.")
def submit(dry_run: bool, options: tuple[str, ...], **given: Any) -> None:  # fields of SubmitRequest, in their types
    """Submit a job to Slurm; it checkpoints before its time limit, is requeued and resumes, until it is done.

    All options that are not listed here go to sbatch, as --NAME=VALUE: --nodes=2 --ntasks-per-node=4 --time=1:00:00
    --gpus-per-task=1 --qos=high. Whether the cluster takes the job `sbatch --test-only` says. A run that is queued,
    running or finished is not submitted again; a sweep's array has only the points that are not.
    """
    from mpifed.batch.submit import SubmitRequest
    from mpifed.batch.submit import submit as submitted

    lines = submitted(SubmitRequest(options=options, command=tuple(sys.argv[1:]), **given), dry_run)
    for line in lines:
        click.echo(line, err=dry_run and line.startswith(("note ", "warning ")))

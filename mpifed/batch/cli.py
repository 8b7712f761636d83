"""The commands `submit` and `status`; their modules are imported only when they run."""

from __future__ import annotations

import sys
from pathlib import Path
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


@click.command(short_help="The states of runs and sweeps, and what is next.")
@click.argument("folders", metavar="RUN|SWEEP|FOLDER...", nargs=-1, required=True, type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="A list of objects.")
def status(folders: tuple[Path, ...], as_json: bool) -> None:
    """Which runs and points are done, running, queued, resumable or failed, and why; and what to do next.

    Of any other folder all runs below it are listed. Slurm is queried where it is installed; elsewhere the status
    follows from the files alone. The exit code is 0 whether runs failed or not (--json has "exit" of each point), and 3
    if a folder is not that of a run or cannot be read: such folders are named at the end.
    """
    from mpifed.batch.status import show_status

    show_status(folders, as_json)

"""The command line. Each command imports what it needs, so `--help` is quick; only `run` and `doctor` start MPI."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from mpifed import __version__
from mpifed.arguments import FOLDER, Finite
from mpifed.core.errors import MpifedError
from mpifed.core.io_errors import explaining
from mpifed.files.ends import ENDS
from mpifed.text import on_screen, say_at_end, screen_width, shown_lines

_EXIT_CODES = ", ".join(f"{end.code} {end.summary}" for end in ENDS)


class _Commands(click.Group):
    """Commands whose errors become a message and an exit code; those of other packages are imported on first use."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands:
            self.list_commands(ctx)
        return self.commands.get(cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        from mpifed.audit.cli import audit
        from mpifed.batch.cli import submit
        from mpifed.data.command import data
        from mpifed.explain.cli import explain, new
        from mpifed.plots.cli import plot
        from mpifed.results.cli import compare

        for command in (audit, compare, data, explain, new, plot, submit):
            self.add_command(command)
        return super().list_commands(ctx)

    def main(self, *arguments: Any, **named: Any) -> Any:  # as click has it
        """Run the command line with output streams that take all characters, even where they were closed."""
        sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            with explaining():
                return super().main(*arguments, **named)
        except MpifedError as error:
            say_at_end(f"mpifed: error: {shown_lines(error)}")
            sys.exit(error.exit_code)


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=f"Exit codes: {_EXIT_CODES}."
)
@click.version_option(__version__)
def main() -> None:
    """Federated optimization at HPC scale, over MPI."""


@main.command(short_help="Run a job, or the points of a sweep.")
@click.argument("job", type=FOLDER)
@click.option("--set", "changes", multiple=True, metavar="TABLE.KEY=VALUE", help="Change a setting; may be repeated.")
@click.option("--out", type=FOLDER, help="Folder of the results.  [default: runs/NAME]")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in --out, on any number of ranks.")
@click.option("--max-hours", type=Finite(min=0), help="Hours after which to write a checkpoint and end with code 75.")
@click.option("--point", metavar="NAME|NUMBER", help="Run only this point of the job's sweep; numbers are from 0.")
@click.option(
    "--progress", type=click.Choice(["auto", "bar", "lines", "none"]), default="auto", show_default=True,
    help="auto: a bar at a terminal. MPICH's mpiexec hides the terminal from its ranks: there, use bar.",
)  # fmt: skip
@click.option(
    "--accept-changed", is_flag=True, help="With --resume: go on even if own sources or libraries have changed."
)
@click.option("--overwrite", is_flag=True, help="Remove the run or sweep in --out first, unless it is running.")
def run(
    job: Path, changes: tuple[str, ...], out: Path | None, point: str | None,
    **how: Any,  # fields of How, in their types
) -> None:  # fmt: skip
    """Run a job; under mpirun on all its ranks, else in this process.

    SIGTERM, SIGUSR1 and --max-hours end it at the next round with a checkpoint, and exit code 75. It ends
    with 69 if what [stop] asks for was not reached, with 70 if another round would exceed the privacy
    budget, and with 1 if too many clients left in each of the [participation] attempts.

    Before round 0 the job's own classes, "module:Class" of [model], [minimize], [[constraint]] and [regularizer],
    are called once: wrong shapes, dtypes and, with [privacy], wrong norms for clipping end the run with 2. Their
    derivatives and what they declare are tested by mpifed check.

    --resume needs the data that the run began with, in any folder, and the same own sources and libraries, unless
    --accept-changed is given; run.json then lists the changes.
    """
    from mpifed.run.command import How, run_command

    sys.exit(run_command(job, changes, out, point, How(**how)))


@main.command(short_help="Find a job's best settings.", params=[one for one in run.params if one.name != "point"])
def tune(
    job: Path, changes: tuple[str, ...], out: Path | None,
    **how: Any,  # fields of How, in their types
) -> None:  # fmt: skip
    """Run trials of a job with settings drawn by a Sobol sequence; the best go on to more rounds, as [tune] says.

    Prints the trials, and writes the best settings as a job, best.toml in --out. Under mpirun on all its ranks, else in
    this process; the trials are the same.
    """
    from mpifed.run.command import How, run_command

    sys.exit(run_command(job, changes, out, None, How(**how), "tune"))


@main.command(short_help="Check a job: who learns what, and bytes.")
@click.argument("job", type=FOLDER)
@click.option("--set", "changes", multiple=True, metavar="TABLE.KEY=VALUE", help="Change a setting; may be repeated.")
@click.option("--ranks", type=click.IntRange(min=1), help="Number of ranks to place clients on.  [default: 4]")
@click.option("--time", "timed", is_flag=True, help="Play three rounds, on the ranks of mpirun: seconds and memory.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def check(job: Path, changes: tuple[str, ...], ranks: int | None, timed: bool, as_json: bool) -> None:
    """Check a job: what it will send, to whom, who learns what, memory, and what a private one spends.

    Nothing is trained, but with --time three rounds, of which nothing is kept.

    A job that has own classes, "module:Class", is code: to check it is to import their modules. Of [model],
    [minimize], [[constraint]] and [regularizer] they are tested at random points: gradients against finite
    differences, samples alone against samples together, `convex`, and a proximal operator by its inequality.
    """
    if job.is_dir():
        raise click.UsageError(f"{job} is a folder: mpifed show is for a run, mpifed compare for a sweep")
    if timed:
        if ranks is not None:
            raise click.UsageError("--ranks does not go with --time, which plays on the ranks of mpirun; leave it out")
        from mpifed.forecast.job import timed_forecast

        if not (found := timed_forecast(job, changes)):  # of another rank
            return
    else:
        from mpifed.forecast.job import forecast, read

        first, number = read(job, changes)
        found = {**forecast(first, ranks or 4), "points": number}
    from mpifed.forecast.text import forecast_text

    click.echo(json.dumps(found, indent=2) if as_json else forecast_text(found, screen_width()))


@main.command(short_help="How runs ended, what they cost, and what is next.")
@click.argument("run", type=FOLDER, metavar="RUN|SWEEP|FOLDER|DATA")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; of a sweep or folder a list.")
def show(run: Path, as_json: bool) -> None:
    """How a run ended: its results, costs, what is protected, and what is certified; or what a data folder holds.

    Of a sweep, all runs below a folder, or a run that has not ended: which are done, running, queued, resumable or
    failed, why, and the command that goes on. Slurm is asked where it is installed; elsewhere the files tell. The exit
    code is 0 whether runs failed or not (--json has "exit" of each).
    """
    from mpifed.batch.status import show_status
    from mpifed.files.run_folder import finished
    from mpifed.results.show import run_summary, run_text

    if run.is_file():
        raise click.UsageError(f"{run} is a file: mpifed check is for a job")
    if (run / "federation.h5").is_file():
        from mpifed.data.store import open_federation
        from mpifed.data.summary import summary

        if as_json:
            raise click.UsageError(f"{run} is a data folder: --json is for runs; leave it out")
        click.echo(on_screen(summary(open_federation(run))))
    elif not (run / "run.json").exists():
        show_status(run, as_json)
    elif as_json:
        click.echo(json.dumps(run_summary(run), indent=2))
    else:
        click.echo(on_screen(run_text(run)))
        if not finished(run):
            show_status(run, False)


@main.command(short_help="Check the installation and the machine.")
@click.option("--srun", is_flag=True, help="Print only the value that `srun --mpi=` needs for this MPI library.")
def doctor(srun: bool) -> None:
    """Check MPI, HDF5, BLAS, devices and Slurm, and say what to do about each problem.

    Under mpirun it lists the ranks that have joined the same communicator.
    """
    if srun:
        from mpifed.batch.plugin import plugin

        click.echo(plugin())
        return
    from mpifed.doctor import examine

    sys.exit(examine())

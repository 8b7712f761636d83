"""The command line. Each command imports what it needs, so `--help` is quick; only `run` and `doctor` start MPI."""

from __future__ import annotations

import io
import json
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mpifed import __version__
from mpifed.arguments import FOLDER, Finite
from mpifed.core.errors import MpifedError, UsageError
from mpifed.core.io_errors import explaining
from mpifed.files.ends import ENDS
from mpifed.text import on_screen, say_at_end, screen_width, shown_lines

if TYPE_CHECKING:
    from mpifed.plots.style import SizeName
    from mpifed.results.choose import Choice
    from mpifed.results.compare import Comparison

_JOB = click.argument("job", type=FOLDER)
_CHANGES = click.option(
    "--set", "changes", multiple=True, metavar="TABLE.KEY=VALUE", help="Change a setting; may be repeated."
)
_OUT = click.option("--out", type=FOLDER, help="Folder of the results.  [default: runs/NAME]")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object.")
_EXIT_CODES = ", ".join(f"{end.code} {end.summary}" for end in ENDS)


class _Commands(click.Group):
    """Commands whose errors become a message and an exit code; those of other packages are imported on first use."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands:
            self.list_commands(ctx)
        return self.commands.get(cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        from mpifed.audit.cli import audit
        from mpifed.data.command import data
        from mpifed.explain.cli import explain, new

        for command in (audit, data, explain, new):
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
@_JOB
@_CHANGES
@_OUT
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
@_JOB
@_CHANGES
@click.option("--ranks", type=click.IntRange(min=1), help="Number of ranks to place clients on.  [default: 4]")
@click.option("--time", "timed", is_flag=True, help="Play three rounds, on the ranks of mpirun: seconds and memory.")
@_JSON
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


@main.command(short_help="Compare runs and sweeps.")
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
@_JSON
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


@main.command(short_help="Draw runs, sweeps or data.")
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


@main.command(short_help="Submit a job to Slurm.", context_settings={"ignore_unknown_options": True})
@_JOB
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTION OF SBATCH...]")
@_CHANGES
@_OUT
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

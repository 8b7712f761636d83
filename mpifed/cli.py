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
from mpifed.batch.cli import FOLDER, Finite, status, submit
from mpifed.core.errors import ENDS, MpifedError
from mpifed.core.io_errors import explaining
from mpifed.core.text import shown_lines
from mpifed.results.cli import export
from mpifed.scaling.cli import scale
from mpifed.shards.command import data

_EXIT_CODES = ", ".join(f"{end.code} {end.summary}" for end in ENDS)


class _Commands(click.Group):
    """Commands whose errors become a message and an exit code."""

    def main(self, *arguments: Any, **named: Any) -> Any:  # as click has it
        """Run the command line with output streams that take all characters, even where they were closed."""
        sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*arguments, **named)

    def invoke(self, ctx: click.Context) -> Any:  # as click has it
        try:
            with explaining():
                return super().invoke(ctx)
        except MpifedError as error:
            click.echo(f"mpifed: error: {shown_lines(error)}", err=True)
            ctx.exit(error.exit_code)


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=f"Exit codes: {_EXIT_CODES}."
)
@click.version_option(__version__)
def main() -> None:
    """Federated optimization at HPC scale, over MPI."""


main.add_command(data)
main.add_command(submit)
main.add_command(status)
main.add_command(scale)
main.add_command(export)


@main.command()
@click.argument("job", type=FOLDER)
@click.option("--set", "changes", multiple=True, metavar="TABLE.KEY=VALUE", help="Change a setting; may be repeated.")
@click.option("--out", type=FOLDER, help="Folder of the results.  [default: runs/NAME]")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in --out, on any number of ranks.")
@click.option("--max-hours", type=Finite(min=0), help="Hours after which to write a checkpoint and end with code 75.")
@click.option("--point", type=click.IntRange(min=0), help="Run only this point of the job's sweep.")
@click.option(
    "--progress", type=click.Choice(["auto", "bar", "lines", "none"]), default="auto", show_default=True,
    help="auto: a bar at a terminal. MPICH's mpiexec hides the terminal from its ranks: there, use bar.",
)  # fmt: skip
@click.option(
    "--no-check", "unchecked", is_flag=True, help="Do not test own models, terms and regularizers before the run."
)
@click.option(
    "--accept-changed", is_flag=True, help="With --resume: go on even if own sources or libraries have changed."
)
def run(
    job: Path,
    changes: tuple[str, ...],
    out: Path | None,
    resume: bool,
    max_hours: float | None,
    point: int | None,
    progress: str,
    unchecked: bool,
    accept_changed: bool,
) -> None:
    """Run a job; under mpirun on all its ranks, else in this process.

    SIGTERM, SIGUSR1 and --max-hours end it at the next round with a checkpoint, and exit code 75. It ends
    with 5 if a required certificate was not reached, with 6 if another round would exceed the privacy
    budget, and with 1 if too many clients left in each of the [participation] attempts.

    Before round 0 the job's own classes, "module:Class" of [model], [minimize], [[constraint]] and [regularizer],
    are tested on a few rows: gradients against finite differences, a proximal operator by its inequality, and the
    properties that they declare. An error in one ends the run with 2. --no-check skips the tests, and run.json says so.

    --resume needs the data that the run began with, in any folder, and the same own sources and libraries, unless
    --accept-changed is given; run.json then lists the changes.
    """
    from mpifed.run.command import How, run_command

    how = How(resume=resume, max_hours=max_hours, progress=progress, check=not unchecked, accept_changed=accept_changed)
    sys.exit(run_command(job, changes, out, point, how))


@main.command()
@click.argument("job", type=FOLDER)
@click.option("--set", "changes", multiple=True, metavar="TABLE.KEY=VALUE", help="Change a setting; may be repeated.")
@click.option(
    "--ranks", type=click.IntRange(min=1), default=4, show_default=True, help="Number of ranks to forecast for."
)
@click.option(
    "--no-import", "unimported", is_flag=True,
    help='List the modules of own classes, "module:Class", without importing them; check all other tables.',
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def check(job: Path, changes: tuple[str, ...], ranks: int, unimported: bool, as_json: bool) -> None:
    """Check a job, and forecast what it will send, to whom, in how much time and memory; nothing is trained.

    If a job has own classes, "module:Class", their modules are listed first, since importing them runs their
    code; with --json on the standard error, and in the object as "imports".
    """
    if job.is_dir():
        raise click.UsageError(f"{job} is a folder: mpifed show is for a run, mpifed compare for a sweep")
    if _only_named(job, changes, unimported, as_json):
        return
    from mpifed.forecast.job import forecast, forecast_text

    result = forecast(job, changes, ranks)
    click.echo(json.dumps(result, indent=2) if as_json else forecast_text(result))


@main.command()
@click.argument("run", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(run: Path, as_json: bool) -> None:
    """How a run ended: its results, its costs, what is protected, what is certified; or what a data folder holds."""
    if run.is_file():
        raise click.UsageError(f"{run} is a file: mpifed check is for a job")
    if (run / "federation.h5").is_file() and not as_json:
        from mpifed.shards.command import summary
        from mpifed.shards.store import open_federation

        click.echo(summary(open_federation(run)))
        return
    from mpifed.results.show import run_summary, run_text

    click.echo(json.dumps(run_summary(run), indent=2) if as_json else run_text(run))


@main.command()
@click.argument("runs", nargs=-1, required=True, type=FOLDER, metavar="RUN... | SWEEP")
@click.option("--select", type=click.Choice(["best", "pareto"]), help="The best by one column, or by several.")
@click.option(
    "--by", metavar="COLUMN[,COLUMN:WEIGHT...]",
    help="best: the column to minimize, by default the objective, with settings that meet their limits first. pareto: "
    "several columns, weighted or not, by default objective, test accuracy, simulated or training seconds, bytes up.",
)  # fmt: skip
@click.option("--max", "maximize", is_flag=True, help="Maximize the column; accuracies are always maximized.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, or the list of the runs.")
def compare(runs: tuple[Path, ...], select: str | None, by: str | None, maximize: bool, as_json: bool) -> None:
    """How the points of a sweep, or several runs, ended, and which settings were best.

    Runs that differ in their seed alone share a line, with mean and standard deviation.

    --select pareto recommends, of the settings that no other dominates (the Pareto front), the one closest to the
    best values of all criteria, by Grey Relational Analysis.
    """
    if by and not select:
        raise click.UsageError("--by goes with --select best or --select pareto")
    if maximize and select != "best":
        raise click.UsageError("--max goes with --select best; with --select pareto only accuracies are maximized")
    from mpifed.results import best, compare, pareto, points

    where: points.Folders = runs[0] if len(runs) == 1 else runs
    if select == "pareto":
        criteria = pareto.criteria_of(by) if by else None
        text = json.dumps(pareto.select(where, criteria), indent=2) if as_json else compare.pareto_text(where, criteria)
    elif select:
        chosen = by, maximize or None
        text = json.dumps(best.select(where, *chosen), indent=2) if as_json else compare.best_text(where, *chosen)
    elif as_json:
        text = json.dumps(compare.compare_summary(where), indent=2)
    else:
        text = compare.compare_text(where, sys.stdout.isatty())
    click.echo(text)


def _only_named(job: Path, changes: tuple[str, ...], unimported: bool, as_json: bool) -> bool:
    """List the modules that a job would import; True if nothing else is to be done."""
    from mpifed.job.loading import read_table
    from mpifed.job.own_modules import lines, own_modules

    table = read_table(job, changes)
    modules = own_modules(table)
    if not modules:
        return False
    if not unimported:
        click.echo(lines(modules) + "\n", err=as_json)
        sys.stdout.flush()
        return False
    from mpifed.job.sweep import points

    jobs = points(table, str(job), imports=False)
    if as_json:
        imports = [module._asdict() for module in modules]
        click.echo(json.dumps({"job": jobs[0].job.name, "points": len(jobs), "imports": imports}, indent=2))
    else:
        click.echo(f"{lines(modules)}\n\nNothing was imported, so these tables were not checked; all others are valid.")
    return True


@main.command()
@click.argument("name")
def explain(name: str) -> None:
    """What a name means: a table or key of a job, an algorithm, a model, a column of a history, a command.

    For instance batch_size, aggregation.security, fedavg, model (all of them), history, "exit codes", commands; for
    a name of an earlier version, the new name is given.
    For a class of your own, "module:Class", its docstring and keys are shown; to read them, the class is imported.
    """
    from mpifed.audit.findings import NAMES
    from mpifed.explain.answers import explained
    from mpifed.explain.entries import Explanation

    more = [
        Explanation("command", title, command.get_short_help_str(200), ()) for title, command in main.commands.items()
    ]
    more += [Explanation("audit finding", title, text, ()) for title, text in NAMES.items()]
    click.echo(explained(name, more))


@main.command()
@click.argument("runs", nargs=-1, required=True, type=FOLDER)
@click.option("--out", type=FOLDER, help="Figure to write: .png, .pdf or .svg.")
@click.option("--terminal", is_flag=True, help="Draw each run's loss here as well.")
@click.option(
    "--x", "across", multiple=True, help="Horizontal axis; may be repeated.  [default: all]",
    type=click.Choice(["round", "elapsed_s", "simulated_s", "bytes", "epsilon"]),
)  # fmt: skip
@click.option(
    "--relative-to", type=Finite(min=0, min_open=True), metavar="OPTIMUM",
    help="Draw (objective - OPTIMUM) / OPTIMUM instead of the loss.",
)  # fmt: skip
def plot(
    runs: tuple[Path, ...], out: Path | None, terminal: bool, across: tuple[str, ...], relative_to: float | None
) -> None:
    """Loss and accuracy against rounds, seconds, bytes, epsilon; runs that differ in their seed as mean and spread.

    Seconds are those of the training and, for jobs with [simulated_network], those of the simulated deployment.
    """
    from mpifed import plots

    if out is None and not terminal:
        raise click.UsageError("give --out FIGURE, or --terminal")
    if out is None and (across or relative_to):
        raise click.UsageError("--x and --relative-to go with --out FIGURE")
    if terminal:
        for run_dir in runs:
            click.echo(plots.terminal(run_dir))
    if out is not None:
        plots.convergence(runs, out, across or tuple(plots.HORIZONTAL), relative_to)
        click.echo(f"figure: {out}")


@main.command()
@click.argument("what", metavar="RUN|JOB", type=FOLDER)
@click.option("--set", "changes", multiple=True, metavar="TABLE.KEY=VALUE", help="Change a setting of the job.")
@click.option(
    "--rounds", type=click.IntRange(min=1), help="Rounds to record for the audit.  [default: 12, if they fit]"
)
@click.option("--out", type=FOLDER, help="Folder of the report and its images.  [default: of a run, RUN/audit]")
@click.option("--party", "parties", multiple=True, metavar="PARTY", help="server, client or client:7; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def audit(
    what: Path, changes: tuple[str, ...], rounds: int | None, out: Path | None, parties: tuple[str, ...], as_json: bool
) -> None:
    """What each party of a run could learn: counted, attacked and tested, against what the job declares.

    The transcript of a run is used if it has one ([record] transcript); otherwise a short run is recorded, with all
    parties in this process. The exit code is 7 if there are findings that [audit] accept does not list.
    """
    from mpifed.audit.command import audit_command

    audit_command(what, changes, rounds, out, as_json, parties)


@main.command()
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

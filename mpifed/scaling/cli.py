"""The command `scale`; what it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path

import click

FOLDER = click.Path(path_type=Path)


def numbers(text: str, option: str) -> list[int]:
    """'1,2,4' -> [1, 2, 4]."""
    found = [int(one) for one in text.split(",") if one.strip().isdecimal()]
    if len(found) != len(text.split(",")) or min(found) < 1:
        raise click.UsageError(f"{option} {text}: expected positive numbers with commas between them, as in 1,2,4")
    return found


@click.command()
@click.argument("job", type=FOLDER)
@click.option("--set", "changes", multiple=True, metavar="TABLE.KEY=VALUE", help="Change a setting of the job.")
@click.option("--ranks", default="1,2,4", show_default=True, metavar="P[,P...]", help="Numbers of ranks.")
@click.option(
    "--clients", metavar="N[,N...]",
    help="Synthetic data of so many clients, each like one of the job's: in all (strong), of each rank (weak).",
)  # fmt: skip
@click.option("--model-size", "sizes", metavar="H[,H...]", help="[model] hidden.  [default: the job's]")
@click.option("--strong", "kinds", flag_value="strong", help="The same work on more ranks.  [default: both]")
@click.option("--weak", "kinds", flag_value="weak", help="As much work for each rank, on synthetic data.")
@click.option("--both", "kinds", flag_value="strong,weak", default=True, hidden=True)
@click.option("--rounds", type=click.IntRange(min=1), help="Of a run.  [default: the job's, at most 100]")
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each point, in turn.")
@click.option("--out", type=FOLDER, help="Folder of the study; it goes on where it was.  [default: scaling/NAME]")
@click.option(
    "--launcher", help="What starts ranks.  [default: srun in an allocation, else $MPIEXEC or mpiexec, -n {ranks}]"
)
@click.option("--oversubscribe", is_flag=True, help="Run more ranks than there are cores; the report says so.")
@click.option("--no-check", "unchecked", is_flag=True, help="As that of mpifed run.")
@click.option("--predict/--no-predict", default=True, help="The prediction beside, and beyond.  [default: with it]")
@click.option("--latency", type=click.FloatRange(min=0), help="Of the prediction; see mpifed show --scale.")
@click.option("--bandwidth", type=click.FloatRange(min=0, min_open=True), help="Of the prediction.")
@click.option("--ranks-per-node", type=click.IntRange(min=1), help="Of the prediction.")
def scale(
    job: Path,
    changes: tuple[str, ...],
    ranks: str,
    clients: str | None,
    sizes: str | None,
    kinds: str,
    rounds: int | None,
    repeat: int,
    out: Path | None,
    launcher: str | None,
    oversubscribe: bool,
    unchecked: bool,
    predict: bool,
    latency: float | None,
    bandwidth: float | None,
    ranks_per_node: int | None,
) -> None:
    """A strong and weak scaling study of a job, with figures, and a report for a proposal.

    Every point is run again and again through the launcher, in turn with the others; what is done is not run again.
    """
    from mpifed.scaling.command import Asked, study_command

    asked = Asked(
        numbers(ranks, "--ranks"),
        numbers(clients, "--clients") if clients else [],
        numbers(sizes, "--model-size") if sizes else [],
        kinds.split(","), rounds, repeat, launcher, oversubscribe, predict,
        latency_s=latency, bytes_per_s=bandwidth, ranks_per_node=ranks_per_node, check=not unchecked,
    )  # fmt: skip
    path = study_command(job, changes, out or Path("scaling") / job.stem, asked, click.echo)
    click.echo(path.read_text(encoding="utf-8"))
    click.echo(f"report: {path}")

"""The command `scale`; what it needs is imported when it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
@click.option(
    "--predict/--no-predict", default=None,
    help="Only predict a round on each number of ranks, from short runs here; or run without the prediction beside.",
)  # fmt: skip
@click.option(
    "--latency", type=click.FloatRange(min=0), help="Seconds from node to node, of the prediction.  [default: 2e-6]"
)
@click.option(
    "--bandwidth",
    type=click.FloatRange(min=0, min_open=True),
    help="Bytes a second between two nodes.  [default: 12.5e9]",
)
@click.option("--ranks-per-node", type=click.IntRange(min=1), help="Of the prediction.  [default: the cores here]")
@click.option("--json", "as_json", is_flag=True, help="With --predict: one JSON object.")
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
    predict: bool | None,
    latency: float | None,
    bandwidth: float | None,
    ranks_per_node: int | None,
    as_json: bool,
) -> None:
    """A strong and weak scaling study of a job, with figures, and a report for a proposal.

    Every point is run again and again through the launcher, in turn with the others; what is done is not run again.

    With --predict nothing is launched: a round on each of these numbers of ranks is predicted from what it computes and
    sends; with --weak there are as many times the clients as ranks.
    """
    machine: dict[str, Any] = {"latency_s": latency, "bytes_per_s": bandwidth, "ranks_per_node": ranks_per_node}
    if predict:
        from mpifed.forecast.scale import scale as predicted
        from mpifed.forecast.scaletext import scale_text

        found = predicted(job, changes, numbers(ranks, "--ranks"), weak=kinds == "weak", **machine)
        click.echo(json.dumps(found, indent=2) if as_json else scale_text(found))
        return
    if as_json:
        raise click.UsageError("--json goes with --predict; a study writes its numbers into its folder")
    from mpifed.scaling.command import Asked, study_command

    asked = Asked(
        numbers(ranks, "--ranks"),
        numbers(clients, "--clients") if clients else [],
        numbers(sizes, "--model-size") if sizes else [],
        kinds.split(","), rounds, repeat, launcher, oversubscribe, predict is None,
        check=not unchecked, **machine,
    )  # fmt: skip
    path = study_command(job, changes, out or Path("scaling") / job.stem, asked, click.echo)
    click.echo(path.read_text(encoding="utf-8"))
    click.echo(f"report: {path}")

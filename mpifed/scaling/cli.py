"""The command `scale`; its modules are imported only when it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from mpifed.arguments import FOLDER
from mpifed.core.tables import Table
from mpifed.core.text import on_screen, screen_width


def numbers(context: click.Context, option: click.Parameter, text: str | None) -> list[int]:
    """'1,2,4' -> [1, 2, 4]."""
    if not text and option.name != "ranks":
        return []
    text = text or ""
    counts = [int(part) for part in text.split(",") if part.strip().isdecimal()]
    if len(counts) != len(text.split(",")) or min(counts) < 1:
        expected = "expected positive numbers with commas between them, as in 1,2,4"
        raise click.UsageError(f"{option.opts[0]} {text}: {expected}")
    return counts


@click.command(short_help="Measure or predict how a job scales.")
@click.argument("job", type=FOLDER)
@click.option("--set", "changes", multiple=True, metavar="TABLE.KEY=VALUE", help="Change a setting of the job.")
@click.option(
    "--ranks", callback=numbers, default="1,2,4", show_default=True, metavar="P[,P...]",
    help="Numbers of ranks, separated by commas.",
)  # fmt: skip
@click.option(
    "--clients", callback=numbers, metavar="N[,N...]",
    help="Use synthetic data with N clients, in all (strong) or per rank (weak), each like a client of the job.",
)  # fmt: skip
@click.option(
    "--model-size", "sizes", callback=numbers, metavar="H[,H...]",
    help="Widths of an mlp, [model] hidden.  [default: the job's]",
)  # fmt: skip
@click.option("--strong", "kinds", flag_value="strong", help="The same problem on more ranks.  [default: both]")
@click.option("--weak", "kinds", flag_value="weak", help="A problem that grows with the ranks, on synthetic data.")
@click.option("--both", "kinds", flag_value="strong,weak", default=True, hidden=True, help="Both, the default.")
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds of each run.  [default: the job's, at most 100]")
@click.option(
    "--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each point, interleaved."
)
@click.option("--out", type=FOLDER, help="Folder of the study; finished runs are kept.  [default: scaling/NAME]")
@click.option(
    "--launcher",
    help="Command that starts the ranks.  [default: srun in an allocation, else $MPIEXEC or mpiexec, -n {ranks}]",
)
@click.option("--oversubscribe", is_flag=True, help="Run more ranks than there are cores; the report says so.")
@click.option("--no-check", "unchecked", is_flag=True, help="As that of mpifed run.")
@click.option(
    "--predict/--no-predict", default=None,
    help="Only predict the time of a round on each number of ranks, from short runs here; or do not predict.",
)  # fmt: skip
@click.option(
    "--latency",
    type=click.FloatRange(min=0),
    help="Latency between two nodes in seconds, for the prediction.  [default: 2e-6]",
)
@click.option(
    "--bandwidth",
    type=click.FloatRange(min=0, min_open=True),
    help="Bandwidth between two nodes in bytes per second, for the prediction.  [default: 12.5e9]",
)
@click.option("--ranks-per-node", type=click.IntRange(min=1), help="For the prediction.  [default: the cores here]")
@click.option("--json", "as_json", is_flag=True, help="With --predict: print a JSON object.")
def scale(
    job: Path, changes: tuple[str, ...], ranks: list[int], kinds: str, out: Path | None, unchecked: bool,
    predict: bool | None, latency: float | None, bandwidth: float | None, ranks_per_node: int | None, as_json: bool,
    **given: Any,  # further fields of StudyOptions, in their types
) -> None:  # fmt: skip
    """Measure the strong and weak scaling of a job, with figures and a report for a proposal.

    Every point is run several times through the launcher, interleaved with the others; finished runs are not repeated.

    With --predict nothing is launched: the time of a round on each number of ranks is predicted from its computation
    and communication. With --weak the number of clients grows with the number of ranks.
    """
    machine: Table = {"latency_s": latency, "bytes_per_s": bandwidth, "ranks_per_node": ranks_per_node}
    if predict:
        from mpifed.forecast.scale import scale as predicted
        from mpifed.forecast.scale import scale_text

        prediction = predicted(job, changes, ranks, weak=kinds == "weak", **machine)
        click.echo(json.dumps(prediction, indent=2) if as_json else on_screen(scale_text(prediction, screen_width())))
        return
    if as_json:
        raise click.UsageError("--json needs --predict; a study writes its numbers to scaling.json in its folder")
    from mpifed.scaling.command import StudyOptions, study_command

    options = StudyOptions(
        ranks, kinds=kinds.split(","), predict=predict is None, check=not unchecked, **machine, **given
    )
    path = study_command(job, changes, out or Path("scaling") / job.stem, options, click.echo)
    click.echo(path.read_text(encoding="utf-8"))
    click.echo(f"report: {path}")

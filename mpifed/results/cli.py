"""The command `mpifed export`."""

from __future__ import annotations

from pathlib import Path

import click

from mpifed.arguments import FOLDER, run_folders


@click.command(short_help="Write a model for other libraries.")
@click.argument("run", type=FOLDER, shell_complete=run_folders)
@click.option(
    "--to", "form", type=click.Choice(["safetensors", "npz", "torch"]), required=True,
    help="safetensors, npz (NumPy), or torch: a state_dict for torch.load(FILE, weights_only=True).",
)  # fmt: skip
@click.option(
    "--out", type=FOLDER, metavar="FILE", help="File to write.  [default: RUN.safetensors, RUN.npz or RUN.pt]"
)
def export(run: Path, form: str, out: Path | None) -> None:
    """Write the model of a run to a file that other libraries read.

    Arrays have the names that they have in model.h5: of a model of PyTorch those of its state_dict. The file also says
    the name of the job, the number of rounds and the model's SHA-256. Nothing of the run's own is executed.
    """
    from mpifed.results.export import export

    click.echo(f"model: {export(run, form, out)}")

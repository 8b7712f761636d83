"""The command `mpifed new`; its modules are imported only when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from mpifed.arguments import FOLDER, algorithms, models
from mpifed.core.errors import UsageError
from mpifed.core.text import command_line


@click.command(short_help="Write a job with every key explained.")
@click.argument("job", required=False, type=FOLDER)
@click.option(
    "--algorithm", default="fedavg", show_default=True, metavar="NAME", shell_complete=algorithms,
    help='An algorithm, also of your own: "my_module:MyClass".',
)  # fmt: skip
@click.option(
    "--model", metavar="NAME", shell_complete=models, help="A model.  [default: one for this algorithm and data]"
)
@click.option("--data", type=FOLDER, default="data/digits", show_default=True, help="Folder that mpifed data made.")
def new(job: Path | None, algorithm: str, model: str | None, data: Path) -> None:
    """Write a job that runs as it is, with every key that its algorithm and model read, each with a line on it.

    Keys that have a default stand behind #. Without JOB, or with -, the job is printed. If the data are there, the
    model and the size of minibatches are chosen to fit them. An existing file is not replaced.
    """
    from mpifed.explain.new_job import name_for, new_job
    from mpifed.files.write import replace_text

    path = None if job is None or str(job) == "-" else job
    text = new_job(name_for(path, algorithm), algorithm, str(data), model)
    if path is None:
        click.echo(text, nl=False)
        return
    try:
        path.touch(exist_ok=False)
    except FileExistsError as error:
        raise UsageError(f"{path}: exists already; remove it, or choose another name") from error
    try:
        replace_text(path, text)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    click.echo(f"job: {path}\nnext: {command_line('mpifed', 'check', path)}")

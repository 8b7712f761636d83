"""The commands `mpifed new` and `mpifed explain`; their modules are imported only when they run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from mpifed.arguments import FOLDER, algorithms
from mpifed.core.errors import DataError, UsageError
from mpifed.text import command_line, prose, screen_width, wrong_name


@click.command(short_help="Write a short job that runs as it is.")
@click.argument("job", required=False, type=FOLDER)
@click.option(
    "--algorithm", default="fedavg", show_default=True, metavar="NAME", shell_complete=algorithms,
    help='An algorithm, also of your own: "my_module:MyClass".',
)  # fmt: skip
@click.option("--data", type=FOLDER, help="Folder that mpifed data made.  [default: data/digits]")
@click.option("--example", is_flag=True, help="The quickstart: quickstart.toml, and its data where there are none.")
@click.pass_context
def new(context: click.Context, job: Path | None, algorithm: str, data: Path | None, example: bool) -> None:
    """Write a short job that runs as it is; without JOB, or with -, it is printed.

    The model is one for the method and the data; only data/digits may be made later. An existing file is not replaced.
    """
    from mpifed.explain.new_job import EXAMPLE, new_job
    from mpifed.files.write import replace_text

    if example:
        job = job or Path("quickstart.toml")
    if data is not None and not data.exists():
        raise DataError(
            f"--data {data}: no such folder; make it with `mpifed data SOURCE ... {command_line('--out', data)}`, or "
            "name one that is there"
        )
    path = None if job is None or str(job) == "-" else job
    name = algorithm.rpartition(":")[2] if path is None or wrong_name(path.stem) else path.stem
    text = EXAMPLE.read_text(encoding="utf-8") if example else new_job(name, algorithm, str(data or "data/digits"))
    if path is None:
        click.echo(text, nl=False)
        return
    if os.path.lexists(path):
        raise UsageError(f"{path}: exists already; remove it, or choose another name")
    if example and not Path("data/digits").exists():
        _, *words = next(line for line in text.splitlines() if "mpifed data" in line).partition("mpifed ")[2].split()
        context.find_root().command.main(["data", *words], standalone_mode=False)
    replace_text(path, text)
    click.echo(f"job: {path}\nnext: {command_line('mpifed', 'run' if example else 'check', path)}")


@click.command(short_help="What a name of a job or result means.")
@click.argument("name", default="", shell_complete=algorithms)
@click.option("--json-schema", is_flag=True, help="Print the JSON Schema of jobs, for editors that complete and check.")
@click.pass_context
def explain(context: click.Context, name: str, json_schema: bool) -> None:
    """What a name means: a table or key of a job, an algorithm, a model, a column of a history, a command.

    Without a name, all names are listed.

    For instance batch_size, aggregation.security, fedavg, model (all of them), history, "exit codes", commands.
    For a class of your own, "module:Class", its docstring and keys are shown; to read them, the class is imported.
    """
    from mpifed.audit.findings import NAMES
    from mpifed.explain.reference import Entry, explained, schema_of_jobs

    if json_schema:
        click.echo(json.dumps(schema_of_jobs(), indent=2))
        return
    commands = getattr(context.find_root().command, "commands", {})
    more = [Entry("command", title, (each.help or "").partition("\n\n")[0]) for title, each in commands.items()]
    more += [Entry("finding", title, text) for title, text in NAMES.items()]
    text, width = explained(name, more), screen_width()
    click.echo(text if width is None else prose(text, width))

"""The command `mpifed audit`; its modules are imported only when it runs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mpifed.arguments import FOLDER
from mpifed.core.errors import LeakFound
from mpifed.text import on_screen


@click.command(short_help="What the server of a run could learn.")
@click.argument("what", metavar="RUN|JOB", type=FOLDER)
@click.option("--set", "changes", multiple=True, metavar="TABLE.KEY=VALUE", help="Change a setting of the job.")
@click.option(
    "--rounds", type=click.IntRange(min=1), help="Rounds to record.  [default: 12, fewer if they fill 256 MiB]"
)
@click.option("--out", type=FOLDER, help="Folder of report.txt and report.json.  [default: of a run, RUN/audit]")
@click.option("--json", "json_", is_flag=True, help="One JSON object.")
def audit(what: Path, changes: tuple[str, ...], rounds: int | None, out: Path | None, json_: bool) -> None:
    """What the server of a run could learn: attacked and tested, against what the job declares.

    A short run is recorded, with all parties in this process; of a RUN, its job is played again. The exit code is 71 if
    there are findings that [audit] accept does not list.
    """
    from threadpoolctl import threadpool_limits

    from mpifed.audit.command import as_json, as_text, audited
    from mpifed.files.json_file import write_json
    from mpifed.files.write import replace_text
    from mpifed.privacy.disclosure import mark
    from mpifed.results.text import line_of
    from mpifed.run.folder import check_kind

    folder = out or (what / "audit" if what.is_dir() else None)
    if out is None and folder is not None:
        check_kind(folder, is_folder=True)
    with threadpool_limits(1):
        found = audited(what, changes, rounds)
    table, text = as_json(found), "\n".join(as_text(found))
    click.echo(json.dumps(table, indent=2) if json_ else on_screen(text))
    if folder is not None:
        mark(folder)
        write_json(folder / "report.json", table)
        replace_text(folder / "report.txt", text + "\n")
        click.echo(line_of("report", f"{folder}/"), err=json_)
    if found.leaks:
        raise LeakFound(f"{what}: not declared by [audit] accept: {', '.join(found.leaks)}")

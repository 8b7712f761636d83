"""The command `mpifed audit`; its modules are imported only when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from mpifed.arguments import FOLDER


@click.command(short_help="What each party of a run could learn.")
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

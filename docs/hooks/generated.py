"""Parts of the reference made from the tables of the program: jobs, commands, columns of histories, exit codes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import click
from contract import cell
from contract import sections as contract_sections
from method_rows import method_rows

from mpifed.audit.findings import NAMES
from mpifed.cli import main
from mpifed.explain.reference import Key, entries
from mpifed.files.columns import shown
from mpifed.files.ends import ENDS

PLURALS = {
    "job": "Top level", "table": "Tables", "algorithm": "Algorithms", "model": "Models", "term": "Terms",
    "regularizer": "Regularizers", "observer": "Observers", "schedule": "Schedules of learning rates",
    "compressor": "Compressors of uploads",
    "client optimizer": "Optimizers of clients", "server optimizer": "Optimizers of the server",
}  # fmt: skip


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The sections at the marker of a page."""
    for marker, sections in GENERATED.items():
        if marker in markdown:
            markdown = markdown.replace(marker, "\n\n".join(sections()))
    return markdown


def job_sections() -> Iterator[str]:
    """Every table of a job, and all that its tables can name."""
    last = ""
    for entry in entries():
        if entry.kind in ("column", "exit code"):
            continue
        if entry.kind != last:
            last = entry.kind
            yield f"## {PLURALS.get(entry.kind, entry.kind)}"
        if entry.kind != "job":
            yield f"### `{entry.name}`"
        yield _without_comments(entry.text)
        if entry.keys:
            yield "\n".join(_rows(entry.keys))


def _rows(keys: Sequence[Key]) -> Iterator[str]:
    yield "| key | value | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for key in keys:
        cells = (f"`{key.name}`", key.type, f"`{key.default}`" if key.default else "", key.meaning)
        yield f"| {' | '.join(text.replace('|', chr(92) + '|') for text in cells)} |"


def command_sections() -> Iterator[str]:
    """Every command: its text, and its arguments and options; of a group, first those that all its commands have."""
    for name in main.list_commands(click.Context(main)):
        command = main.commands[name]
        yield from _command(f"## {name}", command, ())
        if isinstance(command, click.Group):
            context = click.Context(command, info_name=f"mpifed {name}")
            parts = {part: command.get_command(context, part) for part in command.list_commands(context)}
            every = [part.params for part in parts.values() if part is not None]
            shared = [option for option in every[0] if all(option.name in {one.name for one in two} for two in every)]
            yield from _options(shared, context)
            for part, found in parts.items():
                if found is not None:
                    yield from _command(f"### {name} {part}", found, shared)


def _command(title: str, command: click.Command, shared: Collection[click.Parameter]) -> Iterator[str]:
    context = click.Context(command, info_name=f"mpifed {title.lstrip('# ')}")
    yield title
    yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```"
    yield from map(_paragraph, re.split(r"\n\s*\n", inspect.cleandoc(command.help or "")))
    names = {option.name for option in shared}
    yield from _options([option for option in command.params if option.name not in names], context)


def _options(options: Sequence[click.Parameter], context: click.Context) -> Iterator[str]:
    rows = [record for option in options if (record := option.get_help_record(context))]
    cells = [f"| `{text}` | {cell(what)} |" for text, what in rows if what]
    if cells:
        yield "\n".join(["| option | |", "| --- | --- |", *cells])


def column_rows() -> Iterator[str]:
    """A row for each column of a history."""
    names = {one: f"`{one.name}1` ..." if one.name.endswith("_") else f"`{one.name}`" for one in shown("history")}
    cells = (
        f"| {name} | {one.meaning} | {one.better or ''} | {one.data} | {'start' if one.since_start else ''} |"
        for one, name in names.items()
    )
    yield "\n".join(["| column | | better | rows | since |", "| --- | --- | --- | --- | --- |", *cells])


def exit_code_rows() -> Iterator[str]:
    """A row for each exit code."""
    yield "\n".join(["| code | |", "| --- | --- |", *(f"| {end.code} | {end.meaning} |" for end in ENDS)])


def finding_rows() -> Iterator[str]:
    """A row for each finding of an audit."""
    yield "\n".join(
        ["| finding | what it is |", "| --- | --- |", *(f"| `{name}` | {what} |" for name, what in NAMES.items())]
    )


GENERATED: Mapping[str, Callable[[], Iterator[str]]] = {
    "<!-- generated: contract -->": contract_sections,
    "<!-- generated: methods -->": method_rows,
    "<!-- generated: job -->": job_sections,
    "<!-- generated: commands -->": command_sections,
    "<!-- generated: columns -->": column_rows,
    "<!-- generated: exit codes -->": exit_code_rows,
    "<!-- generated: findings -->": finding_rows,
}


def _paragraph(text: str) -> str:
    r"""One of a command's help; what follows click's mark \b keeps its lines."""
    return f"```text\n{text.removeprefix(chr(8)).strip(chr(10))}\n```" if text.startswith("\b") else text


def _without_comments(text: str) -> str:
    """A class's text, in which a departure from the paper is marked as in a comment: to Markdown that is a heading."""
    marked = re.sub(r"^# differs from the paper:", "\n*Differs from the paper:*", text, flags=re.MULTILINE)
    return re.sub(r"^# ", "", marked, flags=re.MULTILINE)

"""`mpifed explain NAME`: what a name means, wherever it is used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mpifed.core.contract import own_module
from mpifed.core.errors import UsageError
from mpifed.core.nearest import nearest
from mpifed.core.text import shown
from mpifed.explain.entries import Explanation, Key, entries, own_entry
from mpifed.files.columns import column_of

# names for which all entries of a kind are listed, with their first lines
CHOICES = {
    "algorithm": "algorithm", "model": "model", "minimize": "term", "constraint": "term", "regularizer": "regularizer",
    "observe": "observer", "history": "column", "columns": "column",
    "exit codes": "exit code", "exit code": "exit code",
    "schedule": "schedule", "schedules": "schedule", "commands": "command", "findings": "audit finding",
}  # fmt: skip
TABLES = {"algorithm": ("algorithm",), "model": ("model",), "term": ("constraint", "minimize"),
          "regularizer": ("regularizer",), "observer": ("observe",)}  # fmt: skip
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\([^()]*\)")  # its text may have brackets


def explained(name: str, more: Sequence[Explanation] = ()) -> str:
    """What `name` means: an entry, a table with a `name`, `table.key`, a key wherever it stands, or an own class.

    Parameters
    ----------
    more : entries that only the command line knows

    Raises
    ------
    UsageError
        when nothing has that name.
    """
    if own_module(name) is not None:
        return "\n".join(_entry_lines(own_entry(name)))
    known_entries = [*entries(), *more]
    parts = [part for part in (part.strip("[] ") for part in name.split(".")) if part and not _is_index(part, name)]
    table, wanted = ".".join(parts[:-1]), parts[-1] if parts else ""
    if wanted == "name" and table in CHOICES:
        table, wanted = "", table
    column = column_of(wanted).name  # without the number of numbered columns
    whole = [
        entry
        for entry in known_entries
        if not table and (wanted in (entry.name, entry.python) if entry.kind != "column" else entry.name == column)
    ]
    holders = [
        entry
        for entry in known_entries
        if any(key.name == wanted for key in entry.keys) and table in ("", entry.name, *TABLES.get(entry.kind, ()))
    ]
    choices = [entry for entry in known_entries if not table and entry.kind == CHOICES.get(wanted)]
    if not whole and not holders and not choices:
        known = [entry.name for entry in known_entries] + [key.name for entry in known_entries for key in entry.keys]
        raise UsageError(f"{shown(name)}: nothing has that name{nearest(wanted, known)}")
    parts = ["\n".join(_entry_lines(entry)) for entry in whole]
    keys: dict[str, list[str]] = {}  # the tables that have a key, by its explanation
    for entry in holders:
        keys.setdefault(next(_key_line(key) for key in entry.keys if key.name == wanted), []).append(_table_of(entry))
    parts += [f"{', '.join(f'[{table}]' for table in tables)}\n  {line}" for line, tables in keys.items()]
    if choices:
        lines = (f"  {entry.name}: {plain_text(entry.text.partition(chr(10))[0])}" for entry in choices)
        parts.append("\n".join([f"{choices[0].kind}s, for one of which `mpifed explain NAME` tells more:", *lines]))
    return "\n\n".join(parts)


def _is_index(part: str, name: str) -> bool:
    """Whether a part of a name is the number of an element of a list, as in constraint.1.limit."""
    return part.isdecimal() and part != name.strip("[] ")


def _table_of(entry: Explanation) -> str:
    return f"{TABLES[entry.kind][0]}: {entry.name}" if entry.kind in TABLES else entry.name


def _entry_lines(entry: Explanation) -> Iterator[str]:
    yield f"{entry.name} ({entry.kind})"
    yield ""
    yield plain_text(entry.text)
    if entry.keys:
        yield ""
        yield from (f"  {_key_line(key)}" for key in entry.keys)


def _key_line(key: Key) -> str:
    default = f", by default {key.default}" if key.default else ""
    return f"{key.name}: {key.type}{default}" + (f". {plain_text(key.meaning)}" if key.meaning else "")


def plain_text(text: str) -> str:
    """A text without the addresses of links, which are of no use at a terminal, and without comment marks."""
    return re.sub(r"^# differs", "Differs", _LINK.sub(r"\1", text), flags=re.MULTILINE)

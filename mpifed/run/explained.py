"""`mpifed explain NAME`: the answer to a name, wherever it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mpifed.core.contract import own_module
from mpifed.core.errors import UsageError
from mpifed.core.text import shown
from mpifed.run.columns import column_of
from mpifed.run.explain import Entry, Key, entries, own_entry
from mpifed.run.renamed import RENAMED, VALUES, nearest

# what is listed with the first line of each entry of a kind: the tables with a `name`, and whole lists
CHOICES = {
    "algorithm": "algorithm", "model": "model", "minimize": "term", "constraint": "term", "regularizer": "regularizer",
    "history": "column", "columns": "column", "exit codes": "exit code", "exit code": "exit code",
    "commands": "command", "findings": "audit finding",
}  # fmt: skip
TABLES = {"algorithm": ("algorithm",), "model": ("model",), "term": ("constraint", "minimize"),
          "regularizer": ("regularizer",)}  # fmt: skip
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\([^()]*\)")  # its text may have brackets


def explained(name: str, more: Sequence[Entry] = ()) -> str:
    """What `name` means: an entry, a table with a `name`, `table.key`, a key wherever it stands, or an own class.

    Parameters
    ----------
    more : of what is known to the command line alone

    Raises
    ------
    UsageError
        when nothing has that name.
    """
    if own_module(name) is not None:
        return "\n".join(_entry_lines(own_entry(name)))
    every = [*entries(), *more]
    parts = [part for part in (part.strip("[] ") for part in name.split(".")) if part and not _is_index(part, name)]
    table, wanted = ".".join(parts[:-1]), parts[-1] if parts else ""
    if wanted == "name" and table in CHOICES:
        table, wanted = "", table
    of_history = column_of(wanted).name  # of numbered ones the beginning
    whole = [one for one in every if not table and one.name == (of_history if one.kind == "column" else wanted)]
    holders = [one for one in every if any(key.name == wanted for key in one.keys) and _is_in(one, table)]
    choices = [one for one in every if not table and one.kind == CHOICES.get(wanted)]
    if not whole and not holders and not choices:
        old = [entry.now for entry in RENAMED if wanted in (entry.table if entry.key is None else entry.key,)]
        old += [new for (_, _, value), new in VALUES.items() if value == wanted]
        if old:
            return "\n".join(f"{wanted}: is now {now}" for now in dict.fromkeys(old))
        known = [entry.name for entry in every] + [one.name for entry in every for one in entry.keys]
        raise UsageError(f"{shown(name)}: nothing has that name{nearest(wanted, known)}")
    parts = ["\n".join(_entry_lines(entry)) for entry in whole]
    keys: dict[str, list[str]] = {}  # the tables that have a key, by what is said of it
    for entry in holders:
        keys.setdefault(next(_key_line(one) for one in entry.keys if one.name == wanted), []).append(_table_of(entry))
    parts += [f"{', '.join(f'[{table}]' for table in tables)}\n  {line}" for line, tables in keys.items()]
    if choices:
        lines = (f"  {one.name}: {_in_terminal(one.text.partition(chr(10))[0])}" for one in choices)
        parts.append("\n".join([f"{choices[0].kind}s, for one of which `mpifed explain NAME` tells more:", *lines]))
    return "\n\n".join(parts)


def _is_index(part: str, name: str) -> bool:
    """Whether a part of a name is the number of an element of a list, as in constraint.1.limit."""
    return part.isdecimal() and part != name.strip("[] ")


def _is_in(entry: Entry, table: str) -> bool:
    """Whether an entry's keys stand in a table of a job."""
    return table in ("", entry.name, *TABLES.get(entry.kind, ()))


def _table_of(entry: Entry) -> str:
    return f"{TABLES[entry.kind][0]}: {entry.name}" if entry.kind in TABLES else entry.name


def _entry_lines(entry: Entry) -> Iterator[str]:
    yield f"{entry.name} ({entry.kind})"
    yield ""
    yield _in_terminal(entry.text)
    if entry.keys:
        yield ""
        yield from (f"  {_key_line(key)}" for key in entry.keys)


def _key_line(key: Key) -> str:
    default = f", by default {key.default}" if key.default else ""
    return f"{key.name}: {key.type}{default}" + (f". {_in_terminal(key.meaning)}" if key.meaning else "")


def _in_terminal(text: str) -> str:
    """Without the addresses of links, which lead nowhere from a terminal, and the mark of comments."""
    return re.sub(r"^# differs", "Differs", _LINK.sub(r"\1", text), flags=re.MULTILINE)

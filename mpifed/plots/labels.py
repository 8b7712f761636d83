"""What lines of a figure are called: by what sets them apart, and nothing else."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from mpifed.core.tables import ReadOnlyTable
from mpifed.results.text import toml_text

LABEL = "label"  # of a method of a sweep, among the settings of its runs
_NAMING = (LABEL, "name", "algorithm.name", "model.name", "data.path")  # values that say enough without their keys
_MOST = 60  # characters of a label
Parts: TypeAlias = Mapping[int, list[str]]  # by number of the line


def labels_of(settings: Sequence[ReadOnlyTable]) -> list[str]:
    """A label for each line.

    Parameters
    ----------
    settings : of each line, by dotted key; they all differ. `name` is that of the job, `label` that of a method

    Returns
    -------
    list of str
        The names that differ: of methods, jobs, algorithms, models, data; then, among lines alike in these, the other
        settings that differ. Of a single line its method's name, or its job's.
    """
    parts: dict[int, list[str]] = {number: [] for number in range(len(settings))}
    _tell_apart(list(parts), settings, parts)
    return _shortened([
        ", ".join(parts[number]) or str(line.get(LABEL) or line["name"]) for number, line in enumerate(settings)
    ])  # fmt: skip


def _tell_apart(lines: Sequence[int], settings: Sequence[ReadOnlyTable], parts: Parts) -> None:
    """Append to `parts` what sets these lines apart."""
    keys = dict.fromkeys(key for line in lines for key in settings[line])
    values = {key: {json.dumps(settings[line].get(key), sort_keys=True, default=str) for line in lines} for key in keys}
    varying = [key for key, different in values.items() if len(different) > 1]
    for key in [*_NAMING, *(key for key in varying if key.endswith(".name") and key not in _NAMING)]:
        if key in varying:
            _by_name(key, lines, settings, parts)
            return
    tables = {key.partition(".")[0]: None for key in varying if "." in key}
    for table in tables:  # such as privacy, which some have and others do not
        having = [line for line in lines if any(key.startswith(f"{table}.") for key in settings[line])]
        if len(having) < len(lines):
            for line in lines:
                parts[line].append(table if line in having else f"no {table}")
            _tell_apart(having, settings, parts)
            _tell_apart([line for line in lines if line not in having], settings, parts)
            return
    short = _short_keys(varying)
    for line in lines:
        parts[line].extend(
            f"{short[key]} = {_text(settings[line][key])}" if key in settings[line] else f"default {short[key]}"
            for key in varying
        )


def _by_name(key: str, lines: Sequence[int], settings: Sequence[ReadOnlyTable], parts: Parts) -> None:
    """Name the lines by the values of a key, then tell apart those that share one."""
    groups: dict[str, list[int]] = {}
    for line in lines:
        groups.setdefault(str(settings[line].get(key, "")), []).append(line)
    missing = "" if key == LABEL else f"no {key.partition('.')[0]}"
    names = [_last(value) if key == "data.path" else value for value in groups]
    names = _without_ends(names if len(set(names)) == len(names) else list(groups))
    for name, group in zip(names, groups.values(), strict=True):
        for line in group:
            parts[line].extend([text] if (text := name or missing) else [])
        _tell_apart(group, settings, parts)


def _last(path: str) -> str:
    return os.path.basename(path.rstrip("/")) or path


def _without_ends(names: list[str]) -> list[str]:
    """Names without the words that all begin or end with, where all that is left begins with a letter."""
    first, words = names[0], r"[-_ /.:]"
    for begin in reversed([mark.end() for mark in re.finditer(words, first)]):
        if all(name.startswith(first[:begin]) and name[begin : begin + 1].isalpha() for name in names):
            names = [name[begin:] for name in names]
            break
    first = names[0]
    for end in (mark.start() for mark in re.finditer(words, first) if mark.start()):
        if all(name.endswith(first[end:]) and len(name) > len(first) - end for name in names):
            return [name.removesuffix(first[end:]) for name in names]
    return names


def _short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Each key without its table, where the rest is enough; a schedule's key stays with what it schedules."""
    short = {}
    for key in keys:
        parts = key.split(".")
        nested = len(parts) > 2 and not parts[-2].isdecimal()
        short[key] = ".".join(parts[-2:]) if nested else parts[-1]
    return {key: text if list(short.values()).count(text) == 1 else key for key, text in short.items()}


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else toml_text(value)


def _shortened(labels: list[str]) -> list[str]:
    """Labels with their middle left out where they are long and stay apart."""
    short = [label if len(label) <= _MOST else f"{label[: _MOST - 20]}…{label[-19:]}" for label in labels]
    return [text if short.count(text) == 1 else label for text, label in zip(short, labels, strict=True)]

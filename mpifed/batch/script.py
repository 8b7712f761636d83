"""The batch script of mpifed, and how its `#SBATCH` lines and arguments are filled in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpifed.core.errors import UsageError
from mpifed.core.text import shown, wrong_line

SCRIPT = Path(__file__).parent / "scripts" / "train.sbatch"
MARKER = "# mpifed submit puts the arguments here"
_OPTION = re.compile(r"#SBATCH\s+--([a-z][a-z-]*)(?:[=\s]\s*(.*?))?\s*")
_PLAIN = re.compile(r"[^\s#\"'\\]+")
_RESERVED = re.compile("packjob|hetjob", re.IGNORECASE)  # sbatch replaces them anywhere in a line
_SHORT = {
    "A": "account", "C": "constraint", "D": "chdir", "G": "gpus", "H": "hold", "J": "job-name", "L": "licenses",
    "M": "clusters", "N": "nodes", "a": "array", "b": "begin", "c": "cpus-per-task", "d": "dependency", "e": "error",
    "k": "no-kill", "m": "distribution", "n": "ntasks", "o": "output", "p": "partition", "q": "qos",
    "s": "oversubscribe", "t": "time", "w": "nodelist", "x": "exclude",
}  # fmt: skip
_OWN = (
    "array", "gpus-per-node", "nodes", "ntasks-per-node", "partition", "time", "account",
)  # fmt: skip
_REFUSED = {
    "wrap": "mpifed submit brings its own script",
    "parsable": "mpifed submit prints the job's number",
    "test-only": "use --dry-run",
    "ntasks": "use --nodes and --ntasks-per-node",
    "gpus": "use --gpus-per-node",
    "gres": "use --gpus-per-node",
    "clusters": "submit on the cluster itself",
    "wait": "mpifed submit returns immediately; see `mpifed status`",
    "no-requeue": "a job resumes by being requeued; `sbatch --no-requeue slurm/train.sbatch JOB RUN` forbids that",
}

# environment variables of sbatch, which take precedence over the `#SBATCH` lines of a script
_VARIABLES = {
    "account": "SBATCH_ACCOUNT", "array": "SBATCH_ARRAY_INX", "constraint": "SBATCH_CONSTRAINT",
    "error": "SBATCH_ERROR",
    "exclusive": "SBATCH_EXCLUSIVE", "export": "SBATCH_EXPORT",
    "gpus-per-node": "SBATCH_GPUS_PER_NODE", "gpus-per-task": "SBATCH_GPUS_PER_TASK",
    "job-name": "SBATCH_JOB_NAME", "mem": "SBATCH_MEM_PER_NODE", "mem-per-cpu": "SBATCH_MEM_PER_CPU",
    "mem-per-gpu": "SBATCH_MEM_PER_GPU", "open-mode": "SBATCH_OPEN_MODE", "output": "SBATCH_OUTPUT",
    "partition": "SBATCH_PARTITION", "qos": "SBATCH_QOS", "requeue": "SBATCH_NO_REQUEUE",
    "reservation": "SBATCH_RESERVATION", "signal": "SBATCH_SIGNAL", "time": "SBATCH_TIMELIMIT",
}  # fmt: skip
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")  # only one of these may be given

Options = dict[str, str | None]  # options of sbatch by long name; None for those without a value


def read_script() -> str:
    return SCRIPT.read_text(encoding="utf-8")


def options_of(text: str) -> Options:
    """The options in the `#SBATCH` lines of a script."""
    matches = (_OPTION.fullmatch(line) for line in text.splitlines())
    return {match[1]: _value(match[2]) for match in matches if match}


def _value(text: str | None) -> str | None:
    """The value of an option as sbatch reads it: up to a space or #, unless in quotes."""
    words = shlex.shlex(text or "", posix=True, punctuation_chars=False)
    words.whitespace_split, words.escapedquotes = True, "\"'"
    return next(iter(words), None)


def parsed(words: Sequence[str]) -> Options:
    """Options of sbatch from a command line: `--qos=high`, `--qos high`, `-q high`, `--exclusive`.

    Raises UsageError if a word is not an option, or is an option of `mpifed submit` itself or one that would break the
    script.
    """
    options: Options = {}
    rest = list(words)
    while rest:
        word = _checked(rest.pop(0))
        if match := re.fullmatch(r"--([a-z][a-z-]*)(?:=(.*))?", word, re.DOTALL):
            name, value = match[1], match[2]
        elif (match := re.fullmatch(r"-([A-Za-z])(.*)", word, re.DOTALL)) and match[1] in _SHORT:
            name, value = _SHORT[match[1]], match[2].removeprefix("=") or None
        else:
            raise UsageError(f"{word}: not an option of sbatch; give options as --name=value")
        if value is None and rest and not rest[0].startswith("-"):
            value = _checked(rest.pop(0))
        if name in _OWN:
            raise UsageError(f"{word}: give it to mpifed submit itself, as --{name}, before --")
        if name in _REFUSED:
            raise UsageError(f"{word}: not with mpifed submit: {_REFUSED[name]}")
        options[name] = value
    return options


def variables(text: str) -> set[str]:
    """The environment variables that would override the options of a script, or contradict them."""
    there = set(options_of(text))
    if there & set(_MEMORY):
        there |= set(_MEMORY)
    return {_VARIABLES[name] for name in there if name in _VARIABLES}


def filled(
    text: str, options: Mapping[str, str | None], arguments: Sequence[object], before: Sequence[str] = ()
) -> str:
    """A script with its `#SBATCH` options replaced or added, and its arguments fixed.

    Raises UsageError if the script lacks the line that the arguments replace, or an argument has a line break.

    Parameters
    ----------
    text
        Text of the script.
    options
        Options of sbatch.
    arguments
        Arguments that would follow the script's name on a command line.
    before
        Lines of shell code to run first.
    """
    remaining, lines, last = dict(options), [], 0
    for line in text.splitlines():
        match = _OPTION.fullmatch(line)
        if match and match[1] in options:
            if match[1] in remaining:
                lines.append(_line(match[1], remaining.pop(match[1])))
        else:
            lines.append(line)
        if match:
            last = len(lines)
    lines[last:last] = [_line(name, value) for name, value in remaining.items()]
    if MARKER not in lines:
        raise UsageError(f"the batch script lacks the line {MARKER!r}, which the arguments replace")
    at = lines.index(MARKER)
    lines[at : at + 1] = [
        *map(_checked, before),
        f"set -- {shlex.join(_checked(str(argument)) for argument in arguments)}",
    ]
    return "\n".join(lines) + "\n"


def _line(name: str, value: str | None) -> str:
    """An `#SBATCH` line; a value with spaces, quotes or # is put in quotes, since sbatch would cut it there."""
    if value is None:
        return _checked(f"#SBATCH --{name}")
    if match := _RESERVED.search(value):
        raise UsageError(f"--{name}={value}: {match[0]} is a reserved word of sbatch there; remove it")
    quoted = value if _PLAIN.fullmatch(value) else '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
    return _checked(f"#SBATCH --{name}={quoted}")


def _checked(text: str) -> str:
    """The text itself; UsageError if it cannot be written on one line of the script."""
    if why := wrong_line(text):
        raise UsageError(f"{shown(text)}: {why}, since it becomes a line of the batch script")
    return text

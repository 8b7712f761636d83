"""What fuzzing tests share: a command in a process of its own, what a clean end of it is, and damage that shrinks."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from mpifed.cli import main
from mpifed.files.ends import ENDS

SECONDS, MEMORY_BYTES = 600, 3 * 2**30
EXAMPLES = int(os.environ.get("MPIFED_FUZZ", "0"))  # of each test; 0: few, and the same each time


def examples(few: int) -> settings:
    """How often a test is tried: so many times, or as `MPIFED_FUZZ` says."""
    slow = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(max_examples=EXAMPLES or few, derandomize=not EXAMPLES, suppress_health_check=slow, database=None)


class Ended(NamedTuple):
    """How a command ended."""

    code: int  # negative: the signal that ended it
    text: str  # standard output and error


def ended(arguments: Sequence[object], folder: Path) -> Ended:
    """Call `mpifed` with these arguments in `folder`, in a child of this process, with limited time and memory."""
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            _call([str(argument) for argument in arguments], folder, said.fileno())
        _, status = os.waitpid(child, 0)
        said.seek(0)
        return Ended(os.waitstatus_to_exitcode(status), said.read().decode(errors="replace"))


def _call(arguments: list[str], folder: Path, said: int) -> None:
    """The child; never returns."""
    code = 99
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        os.chdir(folder)
        for stream in (1, 2):
            os.dup2(said, stream)
        sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(stream, "w", closefd=False)) for stream in (1, 2))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            main(arguments, prog_name="mpifed")
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(bool(end.code))
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def check(end: Ended, several: bool = False) -> None:
    """Fail unless it ended in time, with an exit code of the page, one message, and no traceback.

    With `several`, as the points of a sweep, there may be more messages.
    """
    assert end.code in {known.code for known in ENDS}, end
    for word in ("Traceback", "unexpected error", "Warning:"):
        assert word not in end.text, end.text
    errors = [line for line in end.text.splitlines() if line.startswith(("mpifed: error", "Error:"))]
    count = min(len(errors), 1) if several else len(errors)
    assert count == (end.code not in (0, 75)), end  # an end whose result stands says why as well


# --- damage ----------------------------------------------------------------------------------------------------------

STRANGE_BYTES = [
    b"\0", b"\n", b"\r\n", b'"', b"'", b",", b"=", b"[", b"]]", b"{", b"}", b"-1", b"0", b"1e308", b"1e999", b"nan",
    b"inf", b"4294967296", b"9223372036854775808", b"9" * 400, b"\xff\xfe", b"\xef\xbb\xbf", b"../../x", b"/",
    b"\x1b[31m", b"%s%n", b"null", b"true", b"[[[[[[[[[[", b'{"a":' * 30, "\u2028\U0001f600".encode(),
    b"1" + b"0" * 30, b"-", b".", b" ",
]  # fmt: skip
STRANGE: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 10**400, 0.5, -0.5, 1e308, 5e-324, "", "x", "\x1b[31m", "\0",
    "../../x", "/dev/zero", "9" * 400, "\u2028", "nan", "a" * 5000, [], [[]], [1, 2, 3], [None], [[0]] * 3, {}, {"": 0},
    {"x": {"y": []}}, json.loads("[" * 300 + "]" * 300), {"0" * 64: "0" * 64}, ["point-0000"] * 2, "[/red]", "$x$",
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes with one to four changes: replaced, removed, repeated, cut off."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        end = min(len(content), at + draw(st.sampled_from([0, 1, 2, 4, 16, 256, len(content)])))
        repeats = [content[at:end] * times for times in (0, 2, 50)] if end - at < 999 else [b""]
        instead = draw(st.sampled_from(repeats + STRANGE_BYTES) | st.binary(max_size=16))
        content = content[:at] + instead + content[end:]
    return content


@st.composite
def other_table(draw: st.DrawFn, table: dict[str, Any]) -> dict[str, Any]:
    """A table with one to three changes: a value replaced, removed, there twice, or put where another is."""
    table = _copied(table)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(table))
        if not places:
            break
        held, key = draw(st.sampled_from(places))
        other, its = draw(st.sampled_from(places))
        value = draw(st.sampled_from([*map(_copied, STRANGE), _copied(other[its])]))
        change = draw(st.sampled_from(["replaced", "removed", "beside"]))
        if change == "removed":
            del held[key]
        elif change == "beside" and isinstance(held, dict):
            held[draw(st.sampled_from([f"{key} ", "x", "", "schema", "a" * 300]))] = value
        else:
            held[key] = value
    return table


def _copied(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place within tables and lists."""
    keys = list(value) if isinstance(value, dict) else range(min(len(value), 50)) if isinstance(value, list) else []
    for key in keys:
        yield value, key
        yield from _places(value[key])


NO_FILES = ["nothing", "folder", "empty", "fifo", "noise", "/dev/zero", "/nowhere/at/all", "itself"]


def put(path: Path, kind: str) -> None:
    """One of `NO_FILES` in the place of a file or folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "noise":
        path.write_bytes(bytes(range(256)) * 4)
    elif kind != "nothing":
        path.symlink_to(path if kind == "itself" else kind)

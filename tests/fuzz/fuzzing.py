"""What every fuzzing test shares: a command in a process of its own, with limits, and what a clean end of it is."""

from __future__ import annotations

import io
import os
import random
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from mpifed.cli import main

CODES = {0, 1, 2, 3, 68, 69, 70, 71, 75}  # of docs/reference/files.md
SECONDS, MEMORY_BYTES = 600.0, 3 * 2**30
EXAMPLES = int(os.environ.get("MPIFED_FUZZ", "0"))  # of each test; 0: few, as in `make test`


def examples(few: int) -> settings:
    """How often a test is tried: so many times, or as `make fuzz` says. The same inputs each time, unless it does."""
    slow = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(
        max_examples=EXAMPLES or few,
        derandomize=not EXAMPLES,
        suppress_health_check=slow,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),  # to make a failing input smaller takes minutes
    )


class Ended(NamedTuple):
    """How a command ended."""

    code: int  # negative: the signal that ended it
    text: str  # standard output and error


def ended(arguments: Sequence[object], folder: Path) -> Ended:
    """Call `mpifed` with these arguments in `folder`, in a child of this process, with limited time and memory."""
    begin, (reader, writer) = time.monotonic(), os.pipe()
    child = os.fork()
    if child == 0:
        _call([str(argument) for argument in arguments], folder, writer)
    os.close(writer)
    found = bytearray()
    while time.monotonic() < begin + SECONDS:
        if select.select([reader], [], [], 0.2)[0]:
            piece = os.read(reader, 2**16)
            if not piece:
                break
            found += piece
    else:
        os.kill(child, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    return Ended(os.waitstatus_to_exitcode(status), found.decode(errors="replace"))


def _call(arguments: list[str], folder: Path, writer: int) -> None:
    """The child; never returns."""
    code = 99
    try:
        os.chdir(folder)
        for stream in (1, 2):
            os.dup2(writer, stream)
        os.close(writer)
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
    """Fail unless it ended in time, with an exit code of the table, one message, and no traceback.

    With `several`, as the points of a sweep, there may be more messages.
    """
    assert end.code in CODES, end
    for word in ("Traceback", "unexpected error", "Warning:"):
        assert word not in end.text, end.text
    errors = [line for line in end.text.splitlines() if line.startswith(("mpifed: error", "Error:"))]
    count = min(len(errors), 1) if several else len(errors)
    assert count == (end.code not in (0, 75)), end  # an end whose result stands says why as well


def mutated(content: bytes, seed: int) -> bytes:
    """Bytes with one to four changes: flipped, removed, repeated, cut off, replaced by what parsers stumble over."""
    draw, found = random.Random(seed), bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(found) + 1)
        end = min(len(found), at + draw.choice([1, 1, 2, 4, 16, 256]))
        kind = draw.randrange(7)
        if kind == 0 and end > at:
            found[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del found[at:end]
        elif kind == 2:
            found[at:at] = found[at:end] * draw.choice([1, 2, 50])
        elif kind == 3:
            del found[at:]
        elif kind == 4:
            found[at:end] = draw.choice(_STRANGE)
        elif kind == 5:
            found[at:end] = draw.randbytes(end - at)
        else:
            found[at:at] = draw.choice(_STRANGE)
    return bytes(found)


_STRANGE = [
    b"\0", b"\n", b"\r\n", b'"', b"'", b",", b"=", b"[", b"]]", b"{", b"}", b"-1", b"0", b"1e308", b"1e999", b"nan",
    b"inf", b"4294967296", b"9223372036854775808", b"9" * 400, b"\xff\xfe", b"\xef\xbb\xbf", b"../../x", b"/",
    b"\x1b[31m", b"%s%n", b"null", b"true", b"[[[[[[[[[[", b'{"a":' * 30, "\u2028\U0001f600".encode(),
    b"1" + b"0" * 30, b"-", b".", b" ",
]  # fmt: skip

seeds = st.integers(0, 2**32)

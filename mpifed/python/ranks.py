"""What the functions of `import mpifed` share: errors on all ranks, in the words of Python, and folders."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from mpifed.comm.transport import Transport
from mpifed.core.errors import MpifedError, UnexpectedError
from mpifed.core.io_errors import explaining
from mpifed.run.agreement import agreed
from mpifed.run.launch import guarded, note_failure

T = TypeVar("T")
_WAIT_S = 10.0  # for the other ranks, before a temporary folder vanishes
# words of the command line, outside of whole commands, as arguments of Python
_SPOKEN: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"`mpifed data \.\.\.[^`]*`", "FederatedDataset.from_arrays"),
    (r", as by --set .*", ""),
    (r"make the data with --task classification", "give integer labels, as by y.astype(int)"),
    (r"go on with --resume --out (.+)$", lambda match: f"go on with resume=True, out={shlex.split(match[1])[0]!r}"),
    (r"--client-test-fraction", "client_test ="),
    (r"--test-fraction", "test ="),
    (r"or --force to", "or overwrite=True to"),
    (r"choose another --out", "give another out"),
    (r"--(resume|overwrite)\b", r"\1=True"),
    (r"--(out|split|clients|partition|skew|scale|seed|labels)\b", r"\1 ="),
)  # fmt: skip


def in_python(text: str) -> str:
    """A message of the command line, for those who called a function."""
    for pattern, words in _SPOKEN:
        text = re.sub(pattern, words, text)
    return text


@contextmanager
def _spoken() -> Iterator[None]:
    try:
        yield
    except UnexpectedError:
        raise
    except MpifedError as error:
        error.args = tuple(in_python(part) if isinstance(part, str) else part for part in error.args)
        raise error.with_traceback(None)  # noqa: B904  # the message says it all; its cause, as of own code, stays


def together(transport: Transport, folder: Path | None, work: Callable[[], T], brief: bool = False) -> T:
    """Run `work` on every rank; errors are raised in a single process, and end all ranks under MPI."""

    def spoken() -> T:
        with _spoken():
            return work()

    if transport.size > 1:
        return guarded(transport, folder, spoken, brief)
    with explaining():
        try:
            return spoken()
        except Exception as error:
            if folder is not None:
                note_failure(folder, error, transport, brief)
            raise


def alike(transport: Transport, work: Callable[[], T]) -> T:
    """The result of work without collective calls, whose errors on any rank are those of all. Collective."""

    def all_agree() -> T:
        results = []
        with agreed(transport), explaining():
            results.append(work())
        return results[0]

    return together(transport, None, all_agree)


def temporary(transport: Transport, prefix: str) -> Path:
    """A folder that vanishes with the process of rank 0, once the others have ended, too. Collective."""
    folder = Path(transport.share(tempfile.mkdtemp(prefix=prefix) if transport.rank == 0 else None))
    atexit.register(_leave, folder, transport.rank, transport.size, os.getpid())
    return folder


def _leave(folder: Path, rank: int, size: int, process: int) -> None:
    if os.getpid() != process:  # forked
        return
    if rank:
        with contextlib.suppress(OSError):
            (folder / f".left-{rank}").touch()
        return
    end = time.monotonic() + _WAIT_S
    while not all((folder / f".left-{other}").exists() for other in range(1, size)) and time.monotonic() < end:
        time.sleep(0.01)
    shutil.rmtree(folder, ignore_errors=True)

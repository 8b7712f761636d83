"""What the functions of `import mpifed` share: one way to speak of errors, on all ranks, and temporary folders."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import TypeVar

from mpifed.comm.gate import at_last
from mpifed.comm.mpi import Comm, agreed
from mpifed.core.errors import MpifedError, UnexpectedError, UsageError
from mpifed.core.io_errors import explaining
from mpifed.files.scratch import scratch
from mpifed.run import launch

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])
_PHRASES = {  # of the command line, by what to do in Python
    "make the data with --task classification": "give integer labels, as by y.astype(int) or y.argmax(axis=1)",
    "make the data with --task multilabel": "give labels [samples, labels] that are 0 or 1, as by y.astype(int)",
    "make the data with --task regression": "give real targets, as by y.astype(float)",
}
_ARGUMENTS = {
    "resume": "resume=True", "overwrite": "overwrite=True", "force": "overwrite=True", "test-fraction": "test",
    "client-test-fraction": "client_test",
}  # fmt: skip


def spoken() -> Callable[[F], F]:
    """Let errors of a function speak of arguments, not of options, and end at its border, without our own frames."""

    def decorated(function: F) -> F:
        @wraps(function)
        def call(*arguments: object, **named: object) -> object:
            try:
                return function(*arguments, **named)
            except UnexpectedError:
                raise
            except MpifedError as error:
                error.args = tuple(_in_python(part) if isinstance(part, str) else part for part in error.args)
                raise error.with_traceback(None)  # noqa: B904  # the message says it all; its cause, as of own code, stays

        return call  # type: ignore[return-value]  # it has the function's signature

    return decorated


def _in_python(text: str) -> str:
    """A message of the command line with arguments in the place of options; commands, in backquotes, stay."""
    for phrase, words in _PHRASES.items():
        text = text.replace(phrase, words)
    parts = text.split("`")
    parts[-1] = re.sub(r" --out (\S+)$", r", out='\1'", parts[-1])
    parts[::2] = [re.sub(r"--([a-z]+(?:-[a-z]+)*)(?: (\S+)(?=:))?", _argument, part) for part in parts[::2]]
    return "`".join(parts)


def _argument(option: re.Match[str]) -> str:
    name = _ARGUMENTS.get(option[1], option[1].replace("-", "_"))
    return f"{name} = {option[2]}" if option[2] else name


def together(comm: Comm, folder: Path | None, work: Callable[[], T], brief: bool = False) -> T:
    """Run `work` on every rank, as `launch.together` does, with errors that speak of arguments."""
    return launch.together(comm, folder, spoken()(work), brief)


def alike(comm: Comm, work: Callable[[], T]) -> T:
    """The result of work without collective calls, whose errors on any rank are those of all. Collective."""

    def all_agree() -> T:
        results = []
        with agreed(comm), explaining():
            results.append(work())
        return results[0]

    return together(comm, None, all_agree)


def temporary(comm: Comm, prefix: str) -> Path:
    """A folder that vanishes with the process of rank 0, once the others have ended, too. Collective."""

    def made() -> str:
        at_last(partial(shutil.rmtree, own := scratch(), ignore_errors=True))
        return tempfile.mkdtemp(prefix=prefix, dir=own)

    with agreed(comm):
        name = made() if comm.rank == 0 else None
    folder = Path(comm.bcast(name))
    with agreed(comm):
        if not folder.exists():
            raise UsageError(
                f"{folder}: is on the machine of rank 0 alone; give out=..., on a file system that all ranks share"
            )
    return folder

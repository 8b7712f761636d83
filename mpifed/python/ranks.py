"""What the functions of `import mpifed` share: errors on all ranks, in the words of Python, and folders."""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from mpifed.comm.gate import at_last
from mpifed.comm.mpi import Comm, agreed
from mpifed.core.errors import MpifedError, UnexpectedError, UsageError
from mpifed.core.io_errors import explaining
from mpifed.files.scratch import scratch
from mpifed.run import launch

T = TypeVar("T")
# words of the command line as those of Python; first whole phrases
_PHRASES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"`mpifed data \.\.\. --split (\w+)`", r"FederatedDataset.from_arrays(..., split='\1')"),
    (r"`mpifed data \.\.\. --client-test-fraction 0.2`", "FederatedDataset.from_arrays(..., client_test=0.2)"),
    (r"`mpifed data \.\.\. --test-fraction 0.2`", "FederatedDataset.from_arrays(..., test=0.2)"),
    (r"`mpifed data \.\.\.[^`]*`", "FederatedDataset.from_arrays"),
    (r", as by --set .*", ""),
    (r"make the data with --task classification", "give integer labels, as by y.astype(int) or y.argmax(axis=1)"),
    (r"make the data with --task multilabel", "give labels [samples, labels] that are 0 or 1, as by y.astype(int)"),
    (r"make the data with --task regression", "give real targets, as by y.astype(float)"),
    (r"; add --task classification", "; give integers, as by y.astype(int)"),
    (r"give --task classification or --task regression", "give integers as texts, or floats"),
    (r"--set (\w+)\.(\w+)=\.\.\. --resume", r"\1={'\2': ...}, resume=True"),
    (r"--set (\w+)=\.\.\. --resume", r"\1=..., resume=True"),
    (r"--resume --out (.+)$", lambda match: f"resume=True, out={shlex.split(match[1])[0]!r}"),
    (r"--ignore NAME", "ignore=['NAME']"),
    (r"in a file of --given", "in a TOML file, by given='FILE'"),
    (r"with --accept-changed", "by `mpifed run JOB --resume --accept-changed`"),
    (r"or --force to", "or overwrite=True to"),
    (r"choose another --out", "give another out"),
)  # fmt: skip
_NAMES = {
    "client_test_fraction": "client_test",
    "test_fraction": "test",
}  # of arguments, where they are not the option's
_FLAGS = ("resume", "overwrite")
# an option at the head of a message, with what came; with one of its values; or by itself
_VALUES = "one-hot|ordinal|zero|mean|median|drop|rows|columns|iid|unit-rows|unit|classes:K|class:K"
_OPTION = re.compile(
    r"--(?P<name>[a-z]+(?:-[a-z]+)*)\b(?: (?P<came>(?<=--to )[^;]*?|(?<=--out )[^;]*?|[^ ;]+?)"
    rf"(?=:(?: |$)| --[a-z]+ \S+: )| (?P<value>{_VALUES})\b)?"
)


def in_python(text: str) -> str:
    """A message of the command line, for those who called a function; whole commands, in backquotes, stay."""
    for pattern, words in _PHRASES:
        text = re.sub(pattern, words, text)
    parts = text.split("`")
    parts[::2] = [_OPTION.sub(_argument, part) for part in parts[::2]]
    return "`".join(parts)


def _argument(option: re.Match[str]) -> str:
    name = option["name"].replace("-", "_")
    name = _NAMES.get(name, name)
    if option["name"] in _FLAGS:
        return f"{name}=True{option[0].removeprefix('--' + option['name'])}"
    if option["came"] is not None:
        return f"{name} = {option['came']}"
    return f"{name}={option['value']!r}" if option["value"] else name


@contextmanager
def spoken() -> Iterator[None]:
    """Let errors speak of arguments, not of options; also a decorator of functions without collective calls."""
    try:
        yield
    except UnexpectedError:
        raise
    except MpifedError as error:
        error.args = tuple(in_python(part) if isinstance(part, str) else part for part in error.args)
        raise error.with_traceback(None)  # noqa: B904  # the message says it all; its cause, as of own code, stays


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

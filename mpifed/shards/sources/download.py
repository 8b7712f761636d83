"""Downloading a file whose content can be checked, from the first mirror that has it."""

from __future__ import annotations

import os
import pickle
import warnings
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mpifed.core.errors import DataError
from mpifed.shards.progress import progress

TIMEOUT_S = 10.0  # without any byte


def cache_folder(name: str) -> Path:
    """Where downloads of this user are kept (XDG base directory specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mpifed" / name


def fetch(path: Path, urls: Iterable[str], check: Callable[[Path], object]) -> None:
    """Download a file to `path`, going on where an earlier attempt stopped.

    Parameters
    ----------
    path : which then holds the complete, checked file
    urls : tried in turn, each for as long as it gets further
    check : called with the downloaded file, which has the same suffix; raises DataError if that is not the right one

    Raises
    ------
    DataError
        When no address gave the right file.
    """
    import requests

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.stem}.part{path.suffix}")
    reasons = []
    for url in urls:
        size = -1
        while _size(part) > size:
            size = _size(part)
            try:
                _go_on(url, part)
                check(part)
                part.rename(path)
                return
            except requests.RequestException as error:
                reason = f"{url}: {error}"
            except DataError as error:
                reason = f"{url}: {error}"
                part.unlink()
        reasons.append(reason)
    raise DataError(f"{path.name}: cannot be downloaded ({'; '.join(reasons)})")


def fetched(read: Callable[..., Any], what: str, folder: Path | None, remedy: str, **options: Any) -> Any:
    """What a function of scikit-learn gives that downloads data and keeps them.

    Parameters
    ----------
    read : takes `data_home` and the `options`
    what : the data's name
    folder : where they are kept; None for scikit-learn's own
    remedy : what to do where they can be neither found nor downloaded

    Raises
    ------
    DataError
        When that is so, or what is kept is damaged.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it tries again
            return read(data_home=folder if folder is None else str(folder), **options)
    except (OSError, EOFError, ValueError, zlib.error, pickle.UnpicklingError) as error:
        where = folder or "the folder of scikit-learn (SCIKIT_LEARN_DATA, else ~/scikit_learn_data)"
        why = str(error) or type(error).__name__
        raise DataError(f"{what}: cannot be read from {where}, nor downloaded ({why}); {remedy}") from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _go_on(url: str, part: Path) -> None:
    """Append to `part` what it lacks of the file at `url`, or get all of it from a server that cannot give parts."""
    import requests

    have = _size(part)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_S) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            return  # it is complete
        response.raise_for_status()
        goes_on = response.status_code == requests.codes.partial_content
        length = response.headers.get("Content-Length")
        have = have if goes_on else 0
        total = have + int(length) if length else None
        with part.open("ab" if goes_on else "wb") as file, progress(part.name, total, have) as advance:
            for piece in response.iter_content(1 << 16):
                file.write(piece)
                advance(len(piece))

"""Downloads of files with known checksums, from the first mirror that works."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from mpifed.core.errors import DataError
from mpifed.data.progress import progress

TIMEOUT_S = 10.0  # without receiving a byte
MOST_BYTES = 2**30  # largest file


def cache_folder(name: str) -> Path:
    """The folder of the user's downloads (XDG base directory specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mpifed" / name


def own_folder(name: str) -> Path | None:
    """The folder $MPIFED_DATA/NAME with the user's own copy of the files; None if there is none."""
    parent = os.environ.get("MPIFED_DATA")
    return Path(parent) / name if parent and (Path(parent) / name).is_dir() else None


def fetch(path: Path, urls: Iterable[str], check: Callable[[Path], object]) -> None:
    """Download a file to `path`, resuming an interrupted download.

    Parameters
    ----------
    path : of the complete, checked file
    urls : tried in order, each as long as it makes progress
    check : called with the downloaded file, which has the same suffix; raises DataError if the content is wrong

    Raises
    ------
    DataError : when no URL gives the right file.
    """
    import requests

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{path.parent}: cannot be made ({error.strerror})") from error
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
            except (requests.RequestException, OSError) as error:
                reason = f"{url}: {error}"
            except DataError as error:
                reason = f"{url}: {error}"
                part.unlink()
        reasons.append(reason)
    raise DataError(f"{path.name}: cannot be downloaded ({'; '.join(reasons)})")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _go_on(url: str, part: Path) -> None:
    """Append to `part` the rest of the file at `url`, or all of it if the server does not support ranges."""
    import requests

    have = _size(part)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_S) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            return  # it is complete
        response.raise_for_status()
        goes_on = response.status_code == requests.codes.partial_content
        length = response.headers.get("Content-Length", "")
        have = have if goes_on else 0
        total = have + int(length) if length.isdecimal() and len(length) < 19 else None
        with part.open("ab" if goes_on else "wb") as file, progress(part.name, total, have) as advance:
            for piece in response.iter_content(1 << 16):
                if file.tell() > MOST_BYTES:
                    raise DataError(f"more than {MOST_BYTES} bytes; expected a smaller file")
                file.write(piece)
                advance(len(piece))

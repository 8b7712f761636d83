"""Names, checksums and compact types of the files of a federation."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError
from mpifed.core.holdings import span as span
from mpifed.core.io_errors import open_regular
from mpifed.core.record import Array, of_vectors

SCHEMA = 2
FEDERATION = "federation.h5"
BYTES = "federation.sha256"  # of all bytes of federation.h5: HDF5 may not terminate on damaged files
_LARGE_BYTES = 2**26  # a larger federation.h5 is compared only if all files are
CHECKSUM = "sha256"  # attribute of federation.h5: checksum of everything else in it
DATA_CHECKSUM = "data_sha256"  # attribute: the same without provenance, which identifies the data
PROVENANCE = "provenance"
TEST = "test_"  # prefix of the datasets of a shard file that hold the clients' test rows
REMEDY = "make the data again with `mpifed data ... --force`"


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.h5"


def aside(path: Path) -> Path:
    """The temporary name of a file while it is written."""
    return path.with_name(path.name + ".part")


def clear(folder: Path) -> None:
    """Remove the files of a federation from a folder, first `federation.h5`, which marks it as complete."""
    (folder / FEDERATION).unlink(missing_ok=True)
    (folder / BYTES).unlink(missing_ok=True)
    for path in [*folder.glob("shard-*.h5"), *folder.glob("*.h5.part")]:
        path.unlink()


def sha256(path: Path) -> str:
    """The SHA-256 checksum of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def check_bytes(folder: Path, whole: bool = False) -> None:
    """Compare federation.h5 with federation.sha256, if there is one, before HDF5 opens it.

    Parameters
    ----------
    folder : of the federation
    whole : compare large files too

    Raises
    ------
    DataError : when they differ, or either cannot be read.
    """
    path, beside = folder / FEDERATION, folder / BYTES
    try:
        if not beside.exists() or (path.stat().st_size > _LARGE_BYTES and not whole):
            return
        with open_regular(beside) as file:
            expected = file.read(65).strip().decode("ascii", "replace")
        digest = sha256(path)
    except OSError as error:
        raise DataError(f"{error.filename or path}: cannot be read ({error.strerror}); {REMEDY}") from error
    if digest != expected:
        raise DataError(
            f"{path}: SHA-256 is {digest}, {BYTES} beside it says {expected!r}; one of them was changed or damaged: "
            f"{REMEDY}"
        )


def check_sizes(folder: Path, sizes: NDArray[np.int64], clients: int, pack: int) -> None:
    """Compare the sizes of the shard files with those that were written.

    Parameters
    ----------
    folder : of the federation
    sizes : [files] bytes of each shard file
    clients : N
    pack : clients per file

    Raises
    ------
    DataError : when a file is missing or has another size.
    """
    for number, size in enumerate(sizes.tolist()):
        path = folder / shard_name(number)
        first, last = number * pack, min((number + 1) * pack, clients) - 1
        whose = f"client {first}" if first == last else f"clients {first} to {last}"
        if not path.is_file():
            raise DataError(f"{path}: no such file, it holds {whose}; put it back, or {REMEDY}")
        if path.stat().st_size != size:
            raise DataError(f"{path}: {path.stat().st_size} bytes, {size} were written for {whose}; {REMEDY}")


def compact_labels(y: Array) -> Array:
    """Labels y [s] in the smallest little-endian dtype that represents them exactly; vectors one after the other."""
    y = of_vectors(y).reshape(-1)
    if np.issubdtype(y.dtype, np.integer):
        return y.astype(np.min_scalar_type(int(y.max(initial=0))).newbyteorder("<"))
    single = y.astype("<f4")
    return single if np.array_equal(single, y) else y.astype("<f8")

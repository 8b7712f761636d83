"""One function writes every file of the package: as a whole, through no link, and on a full disk nothing is lost."""

from __future__ import annotations

import ast
import fcntl
import os
import resource
from collections.abc import Iterable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from limits import soft_limit
from package_sources import FILES, nodes
from written_files import contents

import mpifed as mf
from mpifed.files.hdf5 import content_of, reading_hdf5
from mpifed.files.write import append, replaced

# what writes besides `mpifed.files.write`, and why it may
OTHERS = {
    "cli.py": "a closed stream becomes /dev/null",
    "comm/states.py": "in a checkpoint, whose folder gets its name when it is whole, and in files without a name",
    "files/hdf5.py": "HDF5 opens its file by itself; it is one that `replaced` has made",
    "plots/notebook_figure.py": "the user's own call, with a path of the user's",
    "run/launch.py": "failure.txt is made by the first rank that fails, and by no other",
}
WRITERS = {"write_text", "write_bytes", "tofile", "save", "savez", "savez_compressed", "savetxt"}
NUMPY = {"save", "savez", "savez_compressed", "savetxt"}


def writing(source: Iterable[ast.AST]) -> Iterator[str]:
    """Calls in a source that write to a path."""
    tree = list(source)
    withs = [item for node in tree if isinstance(node, ast.With) for item in node.items]
    handles = {ast.unparse(w.optional_vars) for w in withs if w.optional_vars and "replaced(" in ast.unparse(w)}
    kept = [node for node in tree if isinstance(node, ast.Assign) and ast.unparse(node.value) == "io.BytesIO()"]
    handles |= {ast.unparse(target) for node in kept for target in node.targets}  # in memory
    for node in tree:
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        whose = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        constants = [given.value if isinstance(given, ast.keyword) else given for given in node.args + node.keywords]
        modes = [given.value for given in constants if isinstance(given, ast.Constant) and isinstance(given.value, str)]
        opens = called in ("open", "File", "fdopen") and any(set(mode) & set("wax") and len(mode) < 4 for mode in modes)
        draws = called in ("savefig", "print_png") and ast.unparse(node.args[0]) not in handles
        writes = called in WRITERS and (called not in NUMPY or whose in ("np", "numpy"))
        writes |= called == "to_csv" and bool(node.args)  # without a path it is a text
        if opens or draws or writes:
            yield ast.unparse(node)


def test_one_function_writes_every_file() -> None:
    found = {str(path): calls for path in FILES if (calls := list(writing(nodes(path))))}
    assert found.pop("files/write.py")
    assert found.keys() == OTHERS.keys(), found


@pytest.mark.parametrize("source", [
    "open(path, 'w')", "open(path, mode='xb')", "Path(path).open('a')", "path.write_text('')", "np.save(path, x)",
    "h5py.File(path, 'w')", "picture.savefig(path)", "os.fdopen(number, 'wb')", "values.tofile(path)",
])  # fmt: skip
def test_the_law_sees(source: str) -> None:
    assert list(writing(ast.walk(ast.parse(source)))) == [ast.unparse(ast.parse(source))]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("link", "link.new", ".link.new", "appended"):
        (tmp_path / name).symlink_to(victim)
    with replaced(tmp_path / "link") as file:
        file.write(b"new")
    with pytest.raises(OSError, match="appended"):
        append(tmp_path / "appended", b"more")
    assert victim.read_text() == "mine" and not (tmp_path / "link").is_symlink()
    assert contents(tmp_path)["link"] == b"new" and len(contents(tmp_path)) == 5


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "null").symlink_to("/dev/null")
    with pytest.raises(mf.UsageError, match="null: is no regular file"), replaced(tmp_path / "null"):
        pass
    assert (tmp_path / "null").is_symlink()


def test_what_fails_leaves_the_old_file_and_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), replaced(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert contents(tmp_path) == {"file": b"old"}


def test_a_full_disk(digits: Path, tmp_path: Path) -> None:
    """One sentence that names the file and what to do; an old file stands."""
    run = mf.run(mf.SSCA(batch_size=4), digits, mf.Softmax(), rounds=1, out=tmp_path / "run", progress="none")
    (tmp_path / "file.toml").write_text("old")
    with soft_limit(resource.RLIMIT_FSIZE, 100), pytest.raises(OSError, match=r"File too large: .*file\.toml"):
        run.job.to_toml(tmp_path / "file.toml")
    assert (tmp_path / "file.toml").read_text() == "old" and len(contents(tmp_path / "run")) == len(contents(run.path))


@pytest.mark.skipif("HDF5_USE_FILE_LOCKING" in os.environ, reason="HDF5_USE_FILE_LOCKING is set")
def test_hdf5_is_read_without_locks(tmp_path: Path) -> None:
    """Where nobody can lock a file, as where the file system has no locks."""
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)
    with open(path, "r+b") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="unable to lock file"):
            h5py.File(path)
        with reading_hdf5(path, "remedy") as file:
            assert content_of(file, "x").tolist() == [0, 1, 2]

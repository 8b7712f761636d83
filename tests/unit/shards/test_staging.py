"""Copies of shards on a node's own disk."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from jobs_in_python import checked, job_table

from mpifed.core.errors import DataError, MpifedError, UsageError
from mpifed.files.model_file import model_sha256, read_model
from mpifed.shards import layout, staging
from mpifed.shards.store import ShardFolder, open_federation
from mpifed.testing import Alone, Job
from runs import run


@pytest.fixture
def data(skewed: Path, tmp_path: Path) -> ShardFolder:
    """11 clients, 3 in a file, which a test may damage."""
    shutil.copytree(skewed, tmp_path / "data")
    return open_federation(tmp_path / "data")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def copy_all(data: ShardFolder, folder: Path, clients: range) -> list[bool]:
    files = staging.files_of(data, clients) | {layout.FEDERATION: staging.checksum_of(data)}
    staging.make_ready(data, folder, files)
    return [staging.copy(data.path / name, folder / name, expected) for name, expected in files.items()]


def test_the_files_of_some_clients_and_no_others(data: ShardFolder, tmp_path: Path) -> None:
    folder = tmp_path / "mpifed-copy"
    assert copy_all(data, folder, range(2, 5)) == [True, True, True]
    assert names(folder) == {"federation.h5", "shard-00000.h5", "shard-00001.h5"}
    assert folder.stat().st_mode & 0o777 == 0o700
    copy = staging.opened(data, folder, range(2, 5))
    shutil.rmtree(data.path)
    for client in range(2, 5):
        shard = copy.shard(client, in_memory=False)
        assert shard.samples == data.counts[client] and np.isfinite(shard.y).all()
    with pytest.raises(DataError, match=r"shard-00002.h5: no such file.* same folder for all ranks"):
        staging.opened(data, folder, range(2, 8))


def test_what_is_there_is_not_copied_again(data: ShardFolder, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    copy_all(data, folder, range(11))
    before = {name: (folder / name).stat().st_mtime_ns for name in names(folder)}
    assert not any(copy_all(data, folder, range(11)))
    assert before == {name: (folder / name).stat().st_mtime_ns for name in names(folder)}
    (folder / "shard-00001.h5").write_bytes(b"torn")  # its size tells
    changed = bytearray((folder / "shard-00002.h5").read_bytes())
    changed[-1] ^= 1  # its checksum tells
    (folder / "shard-00002.h5").write_bytes(changed)
    assert copy_all(data, folder, range(11)) == [False, True, True, False, False]
    assert not any(copy_all(data, folder, range(11)))


def test_a_damaged_file_is_not_copied(data: ShardFolder, tmp_path: Path) -> None:
    path = data.path / "shard-00001.h5"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(DataError, match=r"shard-00001\.h5: SHA-256 is "):
        copy_all(data, tmp_path / "copy", range(11))
    assert names(tmp_path / "copy") == {"shard-00000.h5"}  # and nothing unfinished


def test_no_room(data: ShardFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**24 + 10))
    with pytest.raises(DataError, match=r"has 16 MiB free, the shards of this node's clients need \d+ MiB; use"):
        copy_all(data, tmp_path / "copy", range(11))
    monkeypatch.undo()
    copy_all(data, tmp_path / "copy", range(11))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    assert not any(copy_all(data, tmp_path / "copy", range(11)))  # nothing is missing


def test_a_disk_that_fills_up(data: ShardFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(staging.os, "replace", full)
    with pytest.raises(DataError, match=r"cannot be copied to .*No space left on device"):
        copy_all(data, tmp_path / "copy", range(11))
    assert names(tmp_path / "copy") == set()


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("$MPIFED_NOT_SET/x", "a variable in it is not set on "),
        ("${MPIFED_EMPTY}", "a variable in it is not set on "),
        ("scratch", "scratch is not an absolute path"),
        ("/no/such/folder", "there is no folder /no/such/folder on "),
    ],
)
def test_a_folder_that_is_none(stage: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPIFED_EMPTY", "")
    with pytest.raises(UsageError, match=rf'\[data\] stage = "{stage.replace("$", "[$]")}": .*{said}'):
        staging.folder_of(stage, "0" * 64)


def test_the_folder_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_DISK", str(tmp_path))
    assert staging.folder_of("$NODE_DISK", "ab" * 32) == tmp_path / f"mpifed-{'ab' * 16}"
    assert staging.folder_of("${NODE_DISK}/.", "cd" * 32) == tmp_path / f"mpifed-{'cd' * 16}"


def test_somebody_elses_folder(data: ShardFolder, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "mine").symlink_to(tmp_path / "theirs")
    with pytest.raises(UsageError, match="belongs to another user"):
        staging.make_ready(data, tmp_path / "mine", [])
    with pytest.raises(UsageError, match="cannot be made"):
        staging.make_ready(data, tmp_path / "not" / "there", [])


def test_two_jobs_on_a_node_copy_a_file_once(data: ShardFolder, tmp_path: Path) -> None:
    """The second waits for the first, and takes what it has made."""
    name, folder, copied = "shard-00000.h5", tmp_path / "copy", []
    staging.make_ready(data, folder, [])

    def job() -> None:
        copied.append(staging.copy(data.path / name, folder / name, data.checksums[0]))

    with staging._locked(folder / name):
        jobs = [threading.Thread(target=job) for _ in range(3)]
        for one in jobs:
            one.start()
        time.sleep(0.05)
        assert copied == []
    for one in jobs:
        one.join()
    assert sorted(copied) == [False, False, True]


def test_without_locks_it_works_too(data: ShardFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(staging.fcntl, "flock", refuse)
    assert copy_all(data, tmp_path / "copy", range(11))[0]


def test_what_killed_jobs_leave_behind(data: ShardFolder, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir(mode=0o700)
    old, new = folder / "shard-00000.h5.here-1.part", folder / "shard-00000.h5.here-2.part"
    for path in (old, new):
        path.write_bytes(b"of another job")
    os.utime(old, (0, 0))
    copy_all(data, folder, range(11))
    assert not old.exists() and new.exists()


def job(folder: Path, **data: object) -> Job:
    return checked(job_table(rounds=3, data={"path": str(folder), **data}, record={"evaluate_every": 1}))


def test_the_same_bits(data: ShardFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_DISK", str(tmp_path))
    models = []
    for number, settings in enumerate([{}, {"stage": "$NODE_DISK"}, {"stage": "$NODE_DISK", "memory_gib": 0.0}]):
        out = tmp_path / f"run-{number}"
        run(job(data.path, **settings), Alone(), out)
        models.append(model_sha256(read_model(out / "model.h5")))
    assert len(set(models)) == 1
    (copy,) = tmp_path.glob("mpifed-*")
    assert names(copy) == {"federation.h5", *(f"shard-0000{n}.h5" for n in range(4))}


def test_resumed_with_another_stage(data: ShardFolder, tmp_path: Path) -> None:
    run(job(data.path), Alone(), tmp_path / "run")
    again = job(data.path, stage=str(tmp_path)).model_copy(update={"rounds": 4})
    result = run(again, Alone(), tmp_path / "run", resume=True)
    assert result is not None and result.rounds == 4


def test_an_unset_variable_ends_the_run(data: ShardFolder, tmp_path: Path) -> None:
    with pytest.raises(MpifedError, match="not set") as caught:
        run(job(data.path, stage="$MPIFED_NOT_SET"), Alone(), tmp_path / "run")
    assert caught.value.exit_code == 2

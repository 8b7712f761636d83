"""Checkpoints: everything a run needs to go on to the very bits, on any number of ranks.

A checkpoint is a folder `checkpoint/round-00000100` with the server's state, client states in files by ranges of
clients, and a manifest with their SHA-256. It is written aside, synced and renamed, and the one before it is kept;
so at any moment a whole one is there, and a damaged one falls back to the other.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import h5py
import numpy as np

from mpifed.comm.federation import Federation, Kept
from mpifed.comm.transport import Transport
from mpifed.core.block import Block
from mpifed.core.errors import DataError
from mpifed.core.exchange import States
from mpifed.core.record import Record, leaves, map_leaves
from mpifed.run.history import read_json, write_json
from mpifed.run.setup import Result, together
from mpifed.shards.layout import sha256

SCHEMA = 2
KEPT = 2  # generations
_RANGE = 1024  # clients whose states share a file, as far as one rank hosts them
_NAME = re.compile(r"round-(\d{8})")
_LAST = "last"  # the group of clients' last answers in a file


class Progress(NamedTuple):
    """How far a run has come."""

    round: int  # rounds done
    elapsed_s: float = 0.0
    up_bytes: int = 0
    down_bytes: int = 0
    exchanges: Mapping[str, Mapping[str, float]] = MappingProxyType({})  # what each has cost, to the last checkpoint
    attempt: int = 0  # how often the next round has been void

    def after(self, seconds: float, federation: Federation, rounds: int = 0, attempt: int = 0) -> Progress:
        """After so much time and so many rounds more, or so many attempts at the next one."""
        return self._replace(
            round=self.round + rounds,
            attempt=attempt,
            elapsed_s=self.elapsed_s + seconds,
            up_bytes=federation.up_bytes,
            down_bytes=federation.down_bytes,
        )


def save(
    run_dir: Path,
    transport: Transport,
    progress: Progress,
    job: dict[str, Any],
    server: Record,
    blocks: Sequence[Block],
    clients: States,
    kept: Kept | None = None,
) -> None:
    """Write a checkpoint, then drop all but the last `KEPT`. Collective; raises on every rank if any rank fails.

    Where a whole one of this round stands already, it stays: it holds the same bits. `kept` are the last answers of
    this rank's clients, where they go on counting.
    """
    final = run_dir / "checkpoint" / f"round-{progress.round:08d}"
    aside = final.with_name(final.name + ".new")
    if transport.share(transport.rank == 0 and _why_not_whole(final) is None):
        return
    _together(transport, lambda: _make_anew(aside) if transport.rank == 0 else None)
    checksums: dict[str, str] = {}

    def write() -> None:
        if transport.rank == 0:
            checksums["server.h5"] = _write(aside / "server.h5", {"server": server})
        for name, states in _files(blocks, clients, kept or {}):
            checksums[name] = _write(aside / name, states)

    _together(transport, write)
    gathered = transport.gather(checksums)

    def commit() -> None:
        if gathered is None:
            return
        files = {name: checksum for part in gathered for name, checksum in part.items()}
        done = {**progress._asdict(), "exchanges": dict(progress.exchanges)}
        write_json(aside / "manifest.json", {"schema": SCHEMA, **done, "job": job, "files": files})
        if final.exists():
            shutil.rmtree(final)
        os.rename(aside, final)
        sync_folder(final.parent)
        for old in _generations(run_dir)[KEPT:]:
            shutil.rmtree(old)

    _together(transport, commit)


def load(
    run_dir: Path, transport: Transport, server: Record, blocks: Sequence[Block], clients: States
) -> tuple[Progress, dict[str, Any], Record, States, Kept]:
    """(progress, job, server, clients, last answers) of the newest whole checkpoint. Collective.

    `server` (None on ranks but 0) and `clients` are states of the right structure, as at the start of a run.

    Raises
    ------
    DataError
        when there is no checkpoint, or none that is whole.
    """
    choice = _together(transport, lambda: _newest_whole(run_dir) if transport.rank == 0 else None)
    folder, manifest = transport.share(choice)

    def read() -> tuple[Record, States, Kept]:
        restored = None if server is None else _read(folder / "server.h5", "server", server)
        states = [_read_block(folder, manifest, b, state) for b, state in zip(blocks, clients, strict=True)]
        return restored, states, _read_kept(folder, manifest, blocks)

    result = _together(transport, read)
    progress = Progress(*(manifest[name] for name in Progress._fields))
    return progress, manifest["job"], *result


def _together(transport: Transport, work: Callable[[], Result]) -> Result:
    """`together`, with a word on what a full or read-only disk has to do with it."""

    def told() -> Result:
        try:
            return work()
        except OSError as error:
            remedy = "see whether the disk is full and the folder can be written"
            raise DataError(f"checkpoint: {error}; {remedy}") from error

    return together(transport, told)


def _make_anew(folder: Path) -> None:
    for stale in folder.parent.glob("round-*.new"):
        shutil.rmtree(stale)
    folder.mkdir(parents=True)


def _files(blocks: Sequence[Block], clients: States, kept: Kept) -> Iterator[tuple[str, dict[str, Record]]]:
    """(file name, groups) of what this rank's clients keep, if anything: a block's state by its first client, and each
    client's last answers."""
    there = []
    for block, state in zip(blocks, clients, strict=True):
        groups = {_group(block): state} if any(True for _ in leaves(state)) else {}
        for client in block.clients.tolist():
            groups |= {f"{_LAST}/{client:08d}/{name}": numbers for name, numbers in kept.get(client, {}).items()}
        if groups:
            there.append((block, groups))
    for _, part in groupby(there, key=lambda pair: int(pair[0].clients[0]) // _RANGE):
        pairs = list(part)
        yield _file_name(pairs[0][0].clients[0], pairs[-1][0].clients[-1]), {
            name: one for _, groups in pairs for name, one in groups.items()
        }


def _file_name(first: int, last: int) -> str:
    return f"clients-{first:08d}-{last:08d}.h5"


def _group(block: Block) -> str:
    return f"from-{int(block.clients[0]):08d}"


def _write(path: Path, states: dict[str, Record]) -> str:
    """Write records into the groups of a file, sync it, and give its SHA-256."""
    with h5py.File(path, "w") as file:
        for group, record in states.items():
            for name, leaf in leaves(record):
                file[f"{group}/{name}".rstrip("/")] = leaf
    with open(path, "r+b") as raw:
        os.fsync(raw.fileno())
    return sha256(path)


def _read(path: Path, group: str, like: Record) -> Record:
    names = iter([name for name, _ in leaves(like)])

    def restored(leaf: Any) -> Any:
        name = f"{group}/{next(names)}"
        with h5py.File(path, "r") as file:
            if name not in file:
                raise DataError(f"{path}: no {name}, which this job needs; resume with the job that wrote it")
            found = file[name][()]
        there, needed = np.asarray(found), np.asarray(leaf)
        if (there.shape, there.dtype) != (needed.shape, needed.dtype):
            raise DataError(
                f"{path}: {name} has shape {there.shape} and dtype {there.dtype}, this job needs "
                f"{needed.shape} and {needed.dtype}; resume with the job that wrote it"
            )
        return found

    return map_leaves(restored, like)


def _read_block(folder: Path, manifest: dict[str, Any], block: Block, like: Record) -> Record:
    if not any(True for _ in leaves(like)):
        return like
    first = int(block.clients[0])
    for name, clients in _client_files(manifest):
        if first in clients:
            return _read(folder / name, _group(block), like)
    raise DataError(f"{folder}: no file holds the state of client {first}; resume with the job that wrote it")


def _client_files(manifest: dict[str, Any]) -> Iterator[tuple[str, range]]:
    """(name, clients) of the files of clients' states."""
    for name in manifest["files"]:
        match = re.fullmatch(r"clients-(\d+)-(\d+)\.h5", name)
        if match:
            yield name, range(int(match[1]), int(match[2]) + 1)


def _read_kept(folder: Path, manifest: dict[str, Any], blocks: Sequence[Block]) -> Kept:
    """The last answers of the clients of this rank's blocks, where any count."""
    hosted = [int(client) for block in blocks for client in block.clients]
    found: Kept = {}
    for name, clients in _client_files(manifest):
        if not clients.start <= max(hosted, default=-1) or not min(hosted) < clients.stop:
            continue
        with h5py.File(folder / name, "r") as file:
            there = file.get(_LAST, {})
            for client in hosted:
                for memory, numbers in there.get(f"{client:08d}", {}).items():
                    found.setdefault(client, {})[memory] = numbers[()]
    return found


def _generations(run_dir: Path) -> list[Path]:
    """Checkpoint folders, newest first."""
    found = [path for path in (run_dir / "checkpoint").glob("round-*") if _NAME.fullmatch(path.name)]
    return sorted(found, reverse=True)


def _newest_whole(run_dir: Path) -> tuple[Path, dict[str, Any]]:
    reasons = []
    for folder in _generations(run_dir):
        why_not = _why_not_whole(folder)
        if why_not is None:
            return folder, read_json(folder / "manifest.json")
        reasons.append(f"{folder.name}: {why_not}")
    why = "; ".join(reasons) or "no checkpoint was written"
    raise DataError(f"{run_dir}: nothing to resume ({why}); start anew without --resume, into another folder")


def _why_not_whole(folder: Path) -> str | None:
    """What is wrong with a checkpoint; None when nothing is."""
    try:
        manifest = read_json(folder / "manifest.json")
        if manifest.get("schema") != SCHEMA:
            return f"schema {manifest.get('schema')}, this version reads {SCHEMA}"
        damaged = [name for name, expected in manifest["files"].items() if sha256(folder / name) != expected]
    except (DataError, OSError) as error:
        return str(error)
    return f"{', '.join(damaged)}: not as the checksum says" if damaged else None


def sync_folder(folder: Path) -> None:
    """The names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

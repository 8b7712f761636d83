"""Checkpoints: everything a run needs to go on bit for bit, on any number of ranks.

A checkpoint is a folder `checkpoint/round-00000100` with the server's state, what clients keep in segments, and a
manifest with their SHA-256; all but the manifest have the form that `mpifed.comm.states` describes. A segment holds
what had changed of one rank's clients since the checkpoint before, so that a checkpoint costs no more than that.

It is written under a temporary name, synced and renamed, and the one before it is kept; so at any moment a complete one
is there, and if the newest is damaged, the other is used. Segments that have not changed are hard links in both: each
folder is complete, and can be copied.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from mpifed.comm.mpi import Comm, agreed
from mpifed.comm.rounds import LastAnswers, Ranks
from mpifed.comm.states import STATE, Arrays, ClientStates, StateFile, fitted, named
from mpifed.core.errors import DataError
from mpifed.core.record import Array, Record
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.data.block import Block
from mpifed.data.roster import Roster
from mpifed.files.generations import generations
from mpifed.files.json_file import read_json, write_json
from mpifed.files.write import sha256, sync

SCHEMA = 6
KEPT = 2  # checkpoints
_MOST_SEGMENTS = 8  # of one rank's clients; the smaller half is then written into one
_SERVER = "server"  # kind of arrays
_SERVER_FILE = "server.states"
_LAST = "last"  # kind of arrays: `last/<position in the block>/<name>`


class Progress(NamedTuple):
    """How far a run has come."""

    round: int  # rounds done
    elapsed_s: float = 0.0
    up_bytes: int = 0
    down_bytes: int = 0
    exchanges: Mapping[str, Mapping[str, float]] = MappingProxyType({})  # cost of each, up to the last checkpoint
    attempt: int = 0  # how often the next round has been void so far
    ledger: ReadOnlyTable | None = None  # of a private run: its `Head` at the last checkpoint; on rank 0
    first: ReadOnlyTable | None = None  # numbers of the first iterate that certificates need; on rank 0
    rows: int = 0  # of the history, up to this round; on rank 0

    def after(self, seconds: float, ranks: Ranks, rounds: int = 0, attempt: int = 0) -> Progress:
        """The progress after `seconds` and `rounds` more, or `attempt` void attempts at the next round."""
        return self._replace(
            round=self.round + rounds,
            attempt=attempt,
            elapsed_s=self.elapsed_s + seconds,
            up_bytes=ranks.up_bytes,
            down_bytes=ranks.down_bytes,
        )


class Checkpoints:
    """The checkpoints of a run; on every rank."""

    def __init__(self, run_dir: Path, comm: Comm, blocks: Sequence[Block]) -> None:
        """`blocks`: those that this rank hosts."""
        self._run_dir, self._comm, self._blocks = run_dir, comm, Roster.of(blocks)
        self._checksums: dict[str, str] = {}  # of the files that this rank has written
        self._last: int | None = None  # the round of the newest one
        self.damaged = ""  # on rank 0: what is wrong with checkpoints newer than the one loaded
        self._hosting = comm.allgather(self._blocks.clients[:1].tolist())  # the first client of each rank

    def save(
        self, progress: Progress, run: Table, server: Record, clients: ClientStates, last_answers: LastAnswers
    ) -> None:
        """Write a checkpoint, then drop all but the last `KEPT`. Collective; raises on every rank if any rank fails.

        If there is a complete checkpoint of this round already, it stays: it holds the same bits. Clients' states are
        written where they have changed since the last checkpoint, whose files are linked as far as they are needed.

        Parameters
        ----------
        run : job and identity, which must be the same when the run is resumed
        server : on rank 0
        clients : the states of this rank's blocks
        last_answers : of this rank's clients, where absent clients go on counting
        """
        if self._last == progress.round:
            return
        final = self._run_dir / "checkpoint" / f"round-{progress.round:08d}"
        aside, comm = final.with_name(final.name + ".new"), self._comm
        if comm.bcast(comm.rank == 0 and final.exists()) and not isinstance(self._verified(final), str):
            return
        try:
            with agreed(comm):
                if comm.rank == 0:
                    for stale in final.parent.glob("round-*.new"):
                        shutil.rmtree(stale)
                    aside.mkdir(parents=True)
            segments, numbers = self._plan(clients)
            checksums = {file.path.name: self._checksums[file.path.name] for file in segments}
            with agreed(comm):
                if comm.rank == 0:
                    StateFile.written(aside / _SERVER_FILE, [(0, named(_SERVER, server))])
                    checksums[_SERVER_FILE] = sha256(aside / _SERVER_FILE)
                for file in segments:
                    _link(file.path, aside / file.path.name)
                if numbers:
                    name = f"clients-{progress.round:08d}-{comm.rank:05d}.states"
                    blocks = ((int(self._blocks.first[i]), self._arrays(i, clients, last_answers)) for i in numbers)
                    segments.append(StateFile.written(aside / name, blocks))
                    checksums[name] = sha256(aside / name)
            spans = {file.path.name: (min(file.blocks), max(file.blocks)) for file in segments}
            gathered = comm.gather((checksums, spans))
            with agreed(comm):
                if gathered is not None:  # on rank 0: all is on the disk before the folder has its name
                    files = {name: digest for sums, _ in gathered for name, digest in sums.items()}
                    ranges = {name: span for _, of_rank in gathered for name, span in of_rank.items()}
                    write_json(aside / "manifest.json", {
                        "schema": SCHEMA, **progress._asdict(), "exchanges": dict(progress.exchanges), "run": run,
                        "hosting": self._hosting, "files": files, "segments": ranges,
                    })  # fmt: skip
                    sync(aside)
                    if final.exists():
                        shutil.rmtree(final)
                    os.rename(aside, final)
                    sync(final.parent)
                    for old in generations(self._run_dir)[KEPT:]:
                        shutil.rmtree(old)
        except BaseException:
            if comm.rank == 0:  # a full disk needs the space
                shutil.rmtree(aside, ignore_errors=True)
            raise
        for file in segments:
            file.path = final / file.path.name
        clients.are_saved(dict.fromkeys(numbers, segments[-1]) if numbers else {})
        self._checksums, self._last = checksums, progress.round

    def load(
        self, server: Record, clients: ClientStates, check: Callable[[Progress, Table], None]
    ) -> tuple[Progress, Record, LastAnswers]:
        """(progress, server, last answers) of the newest complete checkpoint, from which `clients` are restored.
        Collective.

        Parameters
        ----------
        server : a state of the right structure, as at the start of a run; None on ranks but 0
        clients : as at the start of a run; a state is read when its clients first participate
        check : called on rank 0 with the progress and `run`, before states are read; raises where it is another run

        Raises
        ------
        DataError
            when there is no complete checkpoint.
        """
        comm = self._comm
        folder, manifest = self._newest_whole()
        progress = Progress(**{name: manifest[name] for name in Progress._fields if name in manifest})
        with agreed(comm):
            if comm.rank == 0:
                check(progress, manifest["run"])
        with agreed(comm):
            state: Record | None = None
            if server is not None:
                file = StateFile.opened(folder / _SERVER_FILE)
                arrays = file.read(0, _SERVER) if file.blocks else {}
                state = fitted(_SERVER, server, arrays, str(folder / _SERVER_FILE))
            mine = self._blocks.first.tolist()
            for name in self._segments_here(manifest):
                file = StateFile.opened(folder / name)
                clients.files |= {i: file for i, first in enumerate(mine) if first in file.blocks}
                self._checksums[name] = manifest["files"][name]
            for i in sorted(clients.files)[:1]:
                clients.peek(i)  # raises now if the states are those of another job
            last_answers = self._last_answers(clients)
        if manifest["hosting"] != self._hosting:  # these segments hold clients of other ranks, too
            clients.changed |= clients.files.keys()
        self._last = manifest["round"]
        return progress, state, last_answers

    def _newest_whole(self) -> tuple[Path, Table]:
        """(folder, manifest) of the newest complete checkpoint; what is wrong with newer ones is `damaged`. Collective.

        DataError where there is none.
        """
        reasons = list[str]()
        for folder in self._comm.bcast(generations(self._run_dir) if self._comm.rank == 0 else None):
            manifest = self._verified(folder)
            if not isinstance(manifest, str):
                self.damaged = "; ".join(reasons)
                return folder, manifest
            reasons.append(f"{folder.name}: {manifest}")
        why = "; ".join(reasons) or "no checkpoint was written"
        raise DataError(
            f"{self._run_dir}: nothing to resume ({why}); start anew without --resume, into another folder", agreed=True
        )

    def _verified(self, folder: Path) -> Table | str:
        """The manifest of a checkpoint whose files match it; otherwise what is wrong with them, as text. Collective.

        Each rank verifies the files that it reads: what a disk reads is what ranks can read at the same time.
        """
        comm, wrong = self._comm, list[str]()
        manifest = comm.bcast(_manifest_of(folder) if comm.rank == 0 else None)
        if isinstance(manifest, str):
            return manifest
        where = f", on rank {comm.rank}" if comm.size > 1 else ""
        for name in [_SERVER_FILE] * (comm.rank == 0) + self._segments_here(manifest):
            try:
                if sha256(folder / name) != manifest["files"][name]:
                    wrong.append(f"{name}: not as the checksum says{where}")
            except OSError as error:
                wrong.append(f"{name}: {error.strerror}{where}")
        return "; ".join(chain.from_iterable(comm.allgather(wrong))) or manifest

    def _segments_here(self, manifest: Table) -> list[str]:
        """The segments that may hold clients of this rank."""
        mine, spans = self._blocks.first.tolist(), sorted(manifest["segments"].items())
        return [name for name, (low, high) in spans if mine and low <= mine[-1] and mine[0] <= high]

    def _plan(self, clients: ClientStates) -> tuple[list[StateFile], list[int]]:
        """(segments to be linked, blocks to be written).

        Blocks of segments that are mostly out of date are written again; where there are many segments, so are
        those of the smaller half.
        """
        needed = Counter[StateFile]()  # bytes
        for i in clients.files.keys() - clients.changed:
            begin, end, _ = clients.files[i].blocks[int(self._blocks.first[i])]
            needed[clients.files[i]] += end - begin
        stay = [file for file, nbytes in needed.most_common() if 2 * nbytes >= file.nbytes]
        if len(stay) > _MOST_SEGMENTS:
            stay = stay[: -(len(stay) // 2)]
        again = {i for i, file in clients.files.items() if file not in stay}
        return stay, sorted(clients.changed | again)

    def _arrays(self, i: int, clients: ClientStates, last_answers: LastAnswers) -> Arrays:
        """The arrays of block `i`: its state, and its clients' last answers."""
        last = {
            f"{_LAST}/{client}/{name}": sent[client]
            for client in self._clients_of(i)
            for name, sent in last_answers.items()
            if client in sent
        }
        return {**named(STATE, clients.peek(i)), **last}

    def _last_answers(self, clients: ClientStates) -> LastAnswers:
        """The last answers of this rank's clients, as far as there are any."""
        last_answers = defaultdict[str, dict[int, Array]](dict)
        for i, file in clients.files.items():
            mine = {str(client): client for client in self._clients_of(i)}
            for name, numbers in file.read(int(self._blocks.first[i]), _LAST).items():
                client, _, of = name.removeprefix(f"{_LAST}/").partition("/")
                if client in mine:
                    last_answers[of][mine[client]] = numbers
        return last_answers

    def _clients_of(self, i: int) -> list[int]:
        members: list[int] = self._blocks.clients[self._blocks.bounds[i] : self._blocks.bounds[i + 1]].tolist()
        return members


def _link(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        sync(target)


def _manifest_of(folder: Path) -> Table | str:
    """The manifest of a checkpoint, which names all its files; otherwise what is wrong with it, as text."""
    from mpifed.files.schemas import Manifest, conforming, shown_value  # with pydantic, which rank 0 alone needs

    try:
        manifest = read_json(folder / "manifest.json")
        if manifest.get("schema") != SCHEMA:
            return f"schema {shown_value(manifest.get('schema'))}, this version reads {SCHEMA}"
        content = conforming(Manifest, manifest)
    except OSError as error:
        return f"manifest.json: {error.strerror}"
    except (DataError, ValueError) as error:
        return f"manifest.json: {error}" if isinstance(error, ValueError) else str(error)
    if folder.name != f"round-{content.round:08d}" or not {_SERVER_FILE, *content.segments} <= content.files.keys():
        return f"manifest.json: is of round {content.round}, or does not name all files ({', '.join(content.files)})"
    return manifest

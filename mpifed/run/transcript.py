"""Transcripts: what each party of a run sent and received, message by message, as it travelled.

A rank records what it sees: the broadcasts, the uploads of the clients that it hosts, what it passes to the reduction,
and the sums that it receives. Channels add their own messages, such as public keys and encrypted shares. What never
leaves a party, such as a secret key, is not a message, and so is never recorded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpifed.comm.exchange_plan import ExchangePlan
from mpifed.core.errors import DataError
from mpifed.core.exchange import ToClients
from mpifed.core.record import Array, Record, leaves
from mpifed.core.round import SETUP, Round
from mpifed.files.atomic import aside
from mpifed.shards.hdf5 import Dataset, attribute_of, dataset_of, reading_hdf5, write_hdf5

FOLDER = "transcript"  # in the folder of a run
LIMIT_BYTES = 2**28  # of one rank
SERVER, CLIENTS = "server", "clients"
KINDS = ("question", "upload", "passed-on", "opened", "note")
_FORM = 2  # of the files
_LARGEST_BYTES = LIMIT_BYTES  # of a message that is read; none that is written is larger


class RecordedMessage(NamedTuple):
    """What one party sent to others."""

    round: int  # SETUP before round 0, and for what is measured
    turn: int  # how often the exchange was run before, the same on every rank, recorded or not
    exchange: str  # "" for a message outside exchanges
    kind: str  # question, upload, passed-on, opened, note
    sender: str  # "server", "clients", "client 3", "rank 2"
    receiver: str
    what: str  # a leaf of the question or sum, a part of an upload, or what a note is
    data: Array  # as sent: integers, or bytes as uint8


class Transcript:
    """The recorder of this rank; see `mpifed.comm.channel.Recorder`. No call is collective.

    Parameters
    ----------
    rounds : rounds 0, 1, ... that are recorded
    folder : where `close` writes the file of this rank; nowhere when absent
    limit_bytes : messages beyond so many bytes are only counted
    beside : how often an exchange before or beside rounds is recorded; as often as rounds when absent
    """

    def __init__(
        self, rounds: int, folder: Path | None = None, rank: int = 0, limit_bytes: int = LIMIT_BYTES,
        beside: int | None = None,
    ) -> None:  # fmt: skip
        self.rounds, self.folder, self.rank, self.limit_bytes = rounds, folder, rank, limit_bytes
        self.beside = rounds if beside is None else beside
        self.messages: list[RecordedMessage] = []
        self.nbytes = 0  # of the messages
        self.left_out = 0  # messages beyond the limit
        self.left_out_bytes = 0
        self.channel = ""  # that aggregated the uploads, for the file
        self.part = 0  # how often the run was resumed so far, each time with new keys
        self._turns: Counter[str] = Counter()  # by exchange, how often it was run
        self._beside: Counter[str] = Counter()  # and how often of that before or beside rounds

    def question(self, line: ExchangePlan, now: Round, question: Record) -> None:
        """What the server broadcasts; if the exchange says so, a client receives only the rows of its own columns."""
        self._turns[line.exchange.name] += 1
        self._beside[line.exchange.name] += now.index == SETUP
        self._add_record(line, now, "question", SERVER, CLIENTS, question)

    def upload(self, line: ExchangePlan, now: Round, client: int, upload: Any) -> None:  # in the channel's own form
        """What a client uploads, as it is sent."""
        for what, part in _parts(upload):
            self._add(line, now, "upload", f"client {client}", SERVER, what, part)

    def passed_on(self, line: ExchangePlan, now: Round, message: Any) -> None:  # in the channel's own form
        """What this rank passes to the reduction, on behalf of its clients."""
        for what, part in _parts(message):
            self._add(line, now, "passed-on", f"rank {self.rank}", SERVER, what, part)

    def opened(self, line: ExchangePlan, now: Round, total: Record) -> None:
        """The sum, as its receivers get it."""
        hearer = line.exchange.hearer
        receiver = CLIENTS if hearer is None else f"client {hearer}"
        receiver = receiver if isinstance(line.exchange, ToClients) else SERVER
        self._add_record(line, now, "opened", CLIENTS, receiver, total)

    def note(
        self, line: ExchangePlan | None, now: Round | None, sender: str, receiver: str, what: str, payload: bytes
    ) -> None:
        """Record a message of any other kind."""
        self._add(line, now, "note", sender, receiver, what, np.frombuffer(payload, dtype=np.uint8))

    def _add_record(
        self, line: ExchangePlan, now: Round, kind: str, sender: str, receiver: str, record: Record
    ) -> None:
        for name, leaf in leaves(record):
            self._add(line, now, kind, sender, receiver, name, np.asarray(leaf))

    def _add(
        self,
        line: ExchangePlan | None,
        now: Round | None,
        kind: str,
        sender: str,
        receiver: str,
        what: str,
        data: Any,  # in the channel's own form
    ) -> None:
        index, exchange = SETUP if now is None else int(now.index), "" if line is None else line.exchange.name
        if index >= self.rounds or self._beside[exchange] > self.beside:
            return
        if self.nbytes + data.nbytes > self.limit_bytes:
            self.left_out += 1
            self.left_out_bytes += data.nbytes
            return
        self.nbytes += data.nbytes
        turn = max(0, self._turns[exchange] - 1)
        self.messages.append(RecordedMessage(index, turn, exchange, kind, sender, receiver, what, np.array(data)))

    def close(self) -> None:
        """Write the file of this rank, replacing it as a whole, if there is a folder and anything to write."""
        if self.folder is None or not (self.messages or self.left_out):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"rank-{self.rank:04d}" + (f"-part-{self.part}.h5" if self.part else ".h5")
        with aside(self.folder / name) as temporary, write_hdf5(temporary) as file:
            file.attrs.update(
                form=_FORM, rank=self.rank, part=self.part, rounds=self.rounds, channel=self.channel,
                left_out=self.left_out, left_out_bytes=self.left_out_bytes,
            )  # fmt: skip
            for number, message in enumerate(self.messages):
                dataset = file.create_dataset(f"{number:08d}", data=message.data)
                dataset.attrs.update({name: getattr(message, name) for name in RecordedMessage._fields[:-1]})


def _parts(upload: object) -> Iterator[tuple[str, Array]]:
    """(name, array) of each part of what is sent: an array, bytes, or several of them."""
    if isinstance(upload, (bytes, bytearray, memoryview)):
        yield "", np.frombuffer(upload, dtype=np.uint8)
    elif isinstance(upload, (tuple, list)):
        for number, element in enumerate(upload):
            for name, part in _parts(element):
                yield f"{number}/{name}".rstrip("/"), part
    elif upload is not None:
        yield "", np.asarray(upload)


class Recorded(NamedTuple):
    """The transcripts of all ranks of a run."""

    messages: tuple[RecordedMessage, ...]
    rounds: int
    channel: str
    left_out: int
    left_out_bytes: int
    ranks: frozenset[int] = frozenset((0,))  # that recorded


def together(transcripts: Sequence[Transcript]) -> Recorded:
    """The transcripts of several ranks, and of all parts of a run, as a single one."""
    messages: list[RecordedMessage] = []
    turns = Counter[str]()  # by exchange, in the parts before
    for part in sorted({transcript.part for transcript in transcripts}):
        of_part = [transcript for transcript in transcripts if transcript.part == part]
        recorded = [message for transcript in of_part for message in transcript.messages]
        recorded = [message._replace(turn=message.turn + turns[message.exchange]) for message in recorded]
        for message in recorded:
            turns[message.exchange] = max(turns[message.exchange], message.turn + 1)
        messages += recorded
    return Recorded(
        tuple(messages),
        max(transcript.rounds for transcript in transcripts),
        transcripts[0].channel,
        sum(transcript.left_out for transcript in transcripts),
        sum(transcript.left_out_bytes for transcript in transcripts),
        frozenset(transcript.rank for transcript in transcripts),
    )


def is_recorded(run_dir: Path) -> bool:
    """Whether a run has left a transcript."""
    return bool(_files(run_dir))


def parts(run_dir: Path) -> int:
    """How many parts of a run, between one resumption and the next, have left a transcript."""
    return max((part + 1 for part, _, _ in _files(run_dir)), default=0)


def _files(run_dir: Path) -> list[tuple[int, int, Path]]:
    """(part, rank, path), in order."""
    paths = run_dir.glob(f"{FOLDER}/rank-*.h5")
    matches = [(re.fullmatch(r"rank-(\d+)(?:-part-(\d+))?", path.stem), path) for path in paths]
    return sorted((int(match[2] or 0), int(match[1]), path) for match, path in matches if match)


def read(run_dir: Path) -> Recorded:
    """What all ranks of a run have recorded.

    Raises
    ------
    DataError
        when there is no transcript, or it is damaged.
    """
    if not is_recorded(run_dir):
        raise DataError(f"{run_dir}: no transcript; run the job with --set record.transcript=12")
    transcripts = [_read(*file) for file in _files(run_dir)]
    channels = {transcript.channel for transcript in transcripts}
    if len(channels) > 1:
        raise DataError(f"{run_dir}: ranks name different channels, {', '.join(sorted(channels))}; record it again")
    return together(transcripts)


def _read(part: int, rank: int, path: Path) -> Transcript:
    with reading_hdf5(path, "no readable transcript", "record the run again") as file:
        about = {key: attribute_of(file, key) for key in file.attrs}
        if "form" in about and _whole(about["form"]) != _FORM:
            raise DataError(f"{path}: written by another version of mpifed; record the run again")
        transcript = Transcript(_whole(about["rounds"]), path.parent, _whole(about["rank"]))
        transcript.channel, transcript.left_out = _word(about["channel"]), _whole(about["left_out"])
        transcript.left_out_bytes, transcript.part = _whole(about["left_out_bytes"]), _whole(about["part"])
        _whole(about["form"])
        if (transcript.part, transcript.rank) != (part, rank) or transcript.rounds < 1 or transcript.left_out < 0:
            raise ValueError(f"part {transcript.part} of rank {transcript.rank}, {transcript.rounds} rounds")
        transcript.messages += [_message(name, dataset_of(file, name)) for name in sorted(file)]
    return transcript


def _message(name: str, dataset: Dataset) -> RecordedMessage:
    """A message of a file; ValueError, before its data are read, when no run can have written it."""
    about = {key: attribute_of(dataset, key) for key in RecordedMessage._fields[:-1]}
    dtype, shape = dataset.dtype, dataset.shape
    round, turn = _whole(about["round"]), _whole(about["turn"])
    exchange, kind, sender, receiver, what = (_word(about[key]) for key in RecordedMessage._fields[2:-1])
    if kind not in KINDS or round < SETUP or not 0 <= turn < 2**31:
        raise ValueError(f"message {name}: kind {kind!r}, round {round}, turn {turn}")
    if dataset.size * dtype.itemsize > _LARGEST_BYTES:
        raise ValueError(f"message {name}: data of type {dtype} and shape {shape}")
    if kind not in ("question", "opened") and (dtype.kind not in "iu" or len(shape) != 1):
        raise ValueError(f"message {name}: {kind} of type {dtype} and shape {shape}, expected integers in a row")
    data = np.asarray(dataset[()])
    return RecordedMessage(round, turn, exchange, kind, sender, receiver, what, data.astype(dtype.newbyteorder("=")))


def _whole(value: object) -> int:
    """An attribute that must be an integer."""
    if not isinstance(value, (int, np.integer)):
        raise ValueError(f"{value!r} where an integer is expected")
    return int(value)


def _word(value: object) -> str:
    """An attribute that must be text."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} where text is expected")
    return value


def client_of(message: RecordedMessage) -> int | None:
    """The number of the client who sent a message; None where the sender is not a single client."""
    match = re.fullmatch(r"client (\d{1,9})", message.sender)
    return int(match[1]) if match else None

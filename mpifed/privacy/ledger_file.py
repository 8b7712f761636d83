"""The file of a ledger: reading it, and comparing it with what the other files of its run say of it.

The first line is the header. Each line ends with `"sha256"`: the SHA-256 of that of the line before it (the header has
none before it) and of the line without this key. How many rounds' lines there are, and the last SHA-256, are in each
checkpoint, in run.json and in what the model's file says about it (`Head`). So damage, an edited line, and a line that
is missing, swapped or written twice are detected, and so is a ledger that ends earlier than one of these files says.

What is not detected: lines cut off that none of these files counts yet (they are written at the start of a run or of
its resumption, at checkpoints and at the end), and a folder in which the ledger AND all of these files have been
rewritten so that they agree. There is no secret key, and nothing outside the folder is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import Field
from pydantic_core import from_json

from mpifed.core.errors import DataError
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.files.expected import MOST, Count, NotNegative
from mpifed.files.json_file import content, read_json
from mpifed.files.model_file import MODEL, read_about
from mpifed.files.run_folder import job_of
from mpifed.files.schemas import RunJson, Schema, checked, conforming

LEDGER = "ledger.jsonl"
SCHEMA = 2
REMEDY = "what was released is not known; restore the file, or start anew without --resume, into another folder"
_EVERYBODY = "all"
_KEY = b', "sha256": "'
_PREFIX = "ledger_"  # of attributes
_MALFORMED = (ValueError, KeyError, TypeError, OverflowError, RecursionError)  # of edited values
Content = TypeVar("Content")


class LedgerPrivacy(Schema):
    """[privacy] of the job in a ledger's first line."""

    delta: Annotated[float, Field(gt=0, lt=1)]


class LedgerJob(Schema):
    """The job in a ledger's first line."""

    rounds: Annotated[int, Field(ge=1, le=MOST)]
    privacy: LedgerPrivacy


class LedgerHeader(Schema):
    """The first line of a ledger."""

    job: LedgerJob
    noise_multiplier: NotNegative


class LedgerLine(Schema):
    """Each other line of a ledger."""

    round: Count
    clients: Literal["all"] | list[Count]


class Header(NamedTuple):
    """The first line of a ledger; it stays the same when the run is resumed."""

    job: Table  # all its tables
    noise_multiplier: float

    def line(self) -> Table:
        return {"schema": SCHEMA, **self._asdict()}


class ReleasedRound(NamedTuple):
    """A round that was run, or was about to be."""

    round: int
    clients: list[int] | None  # the participating clients; None: all clients are counted

    def line(self) -> Table:
        return {"round": self.round, "clients": _EVERYBODY if self.clients is None else self.clients}


class LedgerHead(NamedTuple):
    """The length of a ledger, and the hash of its last line."""

    lines: int  # of rounds
    sha256: str  # of the last line, which may be the header

    def attributes(self) -> dict[str, int | str]:
        """The attributes of model.safetensors."""
        return {f"{_PREFIX}{name}": value for name, value in self._asdict().items()}


class Contents(NamedTuple):
    """A ledger whose hashes are right."""

    path: Path
    header: Header
    lines: list[ReleasedRound]
    hashes: list[str]  # of the header and of each line
    torn: bool  # whether the last line is incomplete

    @property
    def head(self) -> LedgerHead:
        return LedgerHead(len(self.lines), self.hashes[-1])

    def compare(self, source: str, head: ReadOnlyTable | None) -> None:
        """DataError unless the ledger begins with the lines whose number and last SHA-256 another file states."""
        try:
            lines, sha256 = (int(head["lines"]), str(head["sha256"])) if head else (-1, "")
            if lines < 0:
                raise ValueError
        except _MALFORMED as error:
            raise DataError(
                f"{source}: says {head!r} of {self.path}, and the number of its lines with the sha256 of the last "
                f"one were expected; {REMEDY}"
            ) from error
        if lines > len(self.lines):
            raise DataError(
                f"{self.path}: ends with line {len(self.hashes)}, and {source} says that there is a line {lines + 1}; "
                f"{REMEDY}"
            )
        if self.hashes[lines] != sha256:
            raise DataError(
                f"{self.path}: line {lines + 1} has sha256 {self.hashes[lines]}, and {source} says {sha256}; {REMEDY}"
            )


def linked(line: Header | ReleasedRound, before: str) -> tuple[bytes, str]:
    """(the bytes of a line, its SHA-256), from the SHA-256 of the line before it."""
    return _linked(json.dumps(line.line()).encode(), before)


def _linked(content: bytes, before: str) -> tuple[bytes, str]:
    sha256 = hashlib.sha256(before.encode() + content).hexdigest()
    return content[:-1] + _KEY + sha256.encode() + b'"}\n', sha256


def read_compared(run_dir: Path) -> Contents | None:
    """The ledger of a run, compared with run.json and the model; None where nothing says that the run is private.

    Raises DataError when it is missing, damaged, or not what run.json or a readable model says; it may be ahead.
    """
    run_json, model, heads = run_dir / "run.json", run_dir / MODEL, dict[Path, Table | None]()
    about = read_json(run_json) if run_json.exists() else {}  # read before the ledger, which may grow meanwhile
    if about:
        checked(run_json, RunJson, about, REMEDY)
    if run_json.exists():
        heads[run_json] = about.get("ledger")
    with suppress(DataError):  # missing or damaged it is written again, and run.json says the same of the ledger
        said = read_about(model)
        names = [name for name in LedgerHead._fields if f"{_PREFIX}{name}" in said]
        heads[model] = {name: said[f"{_PREFIX}{name}"] for name in names} or None
    private = (run_dir / LEDGER).exists() or "privacy" in job_of(run_dir) or "delta" in about
    if not private and not any(heads.values()):
        return None
    ledger = read_ledger(run_dir)
    for path, head in heads.items():
        ledger.compare(str(path), head)
    header = {"noise_multiplier": ledger.header.noise_multiplier, "delta": ledger.header.job["privacy"]["delta"]}
    for name, value in header.items() if run_json.exists() else ():
        if about.get(name) != value:
            raise DataError(
                f"{run_json}: {name} = {about.get(name)}, and line 1 of {ledger.path} has {value}; {REMEDY}"
            )
    return ledger


def read_ledger(run_dir: Path) -> Contents:
    """The ledger of a run by itself; DataError when there is none, its hashes are wrong, or its version is unknown."""
    path = run_dir / LEDGER
    try:
        whole, _, rest = content(path).rpartition(b"\n")
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}), and without it nobody knows what was released; restore the "
            "file, or start anew without --resume, into another folder"
        ) from error
    texts = whole.split(b"\n")
    schema = _parsed(path, 1, texts[0], lambda table: table["schema"])
    if schema != SCHEMA:
        raise DataError(f"{path}: has schema {schema}, and this version reads {SCHEMA}; resume with that")
    hashes = [""]
    for number, text in enumerate(texts, 1):
        line, key, tail = text.rpartition(_KEY)
        expected, sha256 = _linked(line + b"}", hashes[-1])
        if text + b"\n" != expected:
            stated = tail.removesuffix(b'"}')[:64].decode(errors="replace") if key else "missing"
            raise _damaged(path, number, f"its sha256 is {stated}, and {sha256} follows from it and the line before")
        hashes.append(sha256)

    def header_of(table: Table) -> Header:
        return Header(table["job"], conforming(LedgerHeader, table).noise_multiplier)

    def line_of(table: object) -> ReleasedRound:
        line = conforming(LedgerLine, table)
        return ReleasedRound(line.round, None if isinstance(line.clients, str) else line.clients)

    header = _parsed(path, 1, texts[0], header_of)
    lines = [_parsed(path, number, text, line_of) for number, text in enumerate(texts[1:], 2)]
    return Contents(path, header, lines, hashes[1:], bool(rest))


def _parsed(path: Path, number: int, text: bytes, make: Callable[[Any], Content]) -> Content:  # of JSON
    try:
        return make(from_json(text, allow_inf_nan=False))
    except _MALFORMED as error:
        raise _damaged(path, number, f"{type(error).__name__}: {error}"[:200]) from error


def _damaged(path: Path, number: int, why: str) -> DataError:
    return DataError(f"{path}: line {number} is damaged ({why}); {REMEDY}")

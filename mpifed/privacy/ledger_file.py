"""The file of a ledger: its lines, and what follows from it, compared with what the other files of its run say.

The first line is the header, with all that the accountant needs; a line for each round follows. Each ends with `"crc"`:
the CRC-32 of all lines up to it, without this key. How many rounds' lines there are, and the last CRC, are in each
checkpoint and in run.json. So damage, an edited line, and a line that is missing, swapped or written twice are found,
and so is a ledger that ends earlier than one of these files says.

What is not: lines cut off that none of these files counts yet (they are written at the start of a run or of its
resumption, at checkpoints and at the end), and files that somebody has rewritten so that they agree.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field
from pydantic_core import from_json

from mpifed.core.errors import DataError
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.files.expected import MOST, Count, NotNegative
from mpifed.files.json_file import content, read_json
from mpifed.files.run_folder import JOB, RUN, job_of
from mpifed.files.schemas import RunJson, Schema, checked, conforming
from mpifed.maths.privacy.release import Release
from mpifed.maths.privacy.settings import Privacy
from mpifed.privacy.spending import Spending

LEDGER = "ledger.jsonl"
SCHEMA = 3
REMEDY = "what was released is not known; restore the file, or start anew without --resume, into another folder"
_NEAR = 2e-4  # how far the epsilons of two versions of the accountant may be apart
_MALFORMED = (ValueError, KeyError, TypeError, OverflowError, RecursionError, AttributeError)  # of edited values
_Each = Annotated[float, Field(ge=0)]
_Rate = Annotated[float, Field(ge=0, le=1)]


class LedgerRelease(Schema):
    """What each round releases; one number where all clients are alike."""

    mechanisms: Count
    multiplier: _Each | list[_Each]
    rate: _Rate | list[_Rate]
    by_chance: bool
    paper_rate: _Rate | list[_Rate] | None


class LedgerJob(Schema):
    """The job in a ledger's first line."""

    rounds: Annotated[int, Field(ge=1, le=MOST)]
    privacy: Table


class Header(Schema):
    """The first line of a ledger; it stays the same when the run is resumed."""

    job: Table  # all its tables
    noise_multiplier: NotNegative
    clients: Annotated[int, Field(ge=1, le=MOST)]
    shares: Count  # of a round's noise, of clients that a server who sees the sum alone may collude with; 0: none
    release: LedgerRelease

    @property
    def spending(self) -> Spending:
        """That of no round."""
        privacy = conforming(Privacy, conforming(LedgerJob, self.job).privacy)
        privacy = replace(privacy, noise_multiplier=self.noise_multiplier)
        arrays = {
            name: np.broadcast_to(np.asarray(value), self.clients)
            for name, value in self.release
            if name in ("multiplier", "rate", "paper_rate") and value is not None
        }
        release = Release(mechanisms=self.release.mechanisms, by_chance=self.release.by_chance, **arrays)
        return Spending(privacy, release, np.zeros(self.clients, np.int64))


class ReleasedRound(Schema):
    """A round that was run, or was about to be."""

    round: Count
    clients: Literal["all"] | list[Count]  # who take part; "all" also where who does is secret


class LedgerHead(NamedTuple):
    """The length of a ledger, and the CRC of all its lines."""

    lines: int  # of rounds
    crc: int


class Contents(NamedTuple):
    """A ledger whose CRCs are right."""

    path: Path
    header: Header
    lines: list[ReleasedRound]
    crcs: list[int]  # up to the header and to each line
    torn: bool  # whether the last line is incomplete

    @property
    def head(self) -> LedgerHead:
        return LedgerHead(len(self.lines), self.crcs[-1])

    def compare(self, source: str, said: ReadOnlyTable | None) -> None:
        """DataError unless the ledger begins with the lines whose number and CRC another file states."""
        if said is None:
            raise DataError(f"{source}: says nothing of {self.path}, which counts its rounds; {REMEDY}")
        lines, crc = said["lines"], said["crc"]
        if lines > len(self.lines):
            raise DataError(
                f"{self.path}: ends with line {len(self.crcs)}, and {source} says that there is a line {lines + 1}; "
                f"{REMEDY}"
            )
        if self.crcs[lines] != crc:
            raise DataError(
                f"{self.path}: line {lines + 1} has crc {self.crcs[lines]}, and {source} says {crc}; {REMEDY}"
            )

    def spending(self) -> Spending:
        """After all lines; an incomplete one counts for everybody."""
        spending = self.header.spending
        for line in self.lines:
            spending = add(spending, line)
        return spending.after(True) if self.torn and spending.privacy.noise == "secure" else spending


def add(spending: Spending, line: ReleasedRound) -> Spending:
    """The spending after a line; IndexError where it has clients that there are not."""
    if line.clients == "all":
        return spending.after(True)
    present = np.zeros(len(spending.rounds), bool)
    present[line.clients] = True
    return spending.after(present)


def header_of(job: Table, algorithm_spending: Spending, shares: int) -> Header:
    """The header of a run that begins."""

    def short(value: object) -> object:
        if not isinstance(value, np.ndarray):
            return value
        return float(value[0]) if (value == value[0]).all() else value.tolist()

    release = {name: short(value) for name, value in algorithm_spending.release._asdict().items()}
    clients, z = len(algorithm_spending.rounds), algorithm_spending.privacy.multiplier
    return Header(
        job=job, noise_multiplier=z, clients=clients, shares=shares, release=conforming(LedgerRelease, release)
    )


def sealed(table: ReadOnlyTable, before: int) -> tuple[bytes, int]:
    """(the bytes of a line, the CRC up to it), from the CRC up to the line before."""
    text = json.dumps(table).encode()
    crc = zlib.crc32(text, before)
    return text[:-1] + b', "crc": %d}\n' % crc, crc


def columns_of(spending: Spending) -> Table:
    """All epsilons by column; None where infinite or not defined."""
    return _finite(spending.costs()._asdict())


def others_of(spending: Spending, shares: int) -> Table:
    """The same against who knows a part of distributed noise, by key of run.json; empty without such.

    That is another client, who knows its own share, or a server that colludes with a third of a round's clients, at
    least one: the other shares are left.
    """
    if not (shares and spending.privacy.noise == "secure"):
        return {}
    colluding = max(1, shares // 3)
    return {"colluding": [colluding, shares]} | _finite(
        {
            "epsilon_other_client": spending.worst((shares - 1) / shares),
            "epsilon_colluding": spending.worst((shares - colluding) / shares),
        }
    )


def _finite(values: Mapping[str, float]) -> Table:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def spent(run_dir: Path) -> Table | None:
    """What a run has spent, by its ledger: a table of its epsilons; None where nothing says that it is private.

    The one function behind all that prints an epsilon of a run.

    Raises
    ------
    DataError
        when the ledger is missing or damaged, or not what run.json says; it may be ahead.
    """
    path, run_json = run_dir / LEDGER, run_dir / RUN
    about = read_json(run_json) if run_json.exists() else {}  # read before the ledger, which may grow meanwhile
    if about:
        checked(run_json, RunJson, about, REMEDY)
    if not path.exists() and "privacy" not in job_of(run_dir) and "delta" not in about:
        return None
    ledger = read_ledger(run_dir)
    begun, written = ledger.header.job["privacy"], job_of(run_dir)
    now = written.get("privacy", {}) if written else begun
    if other := sorted(key for key in {**begun, **now} if begun.get(key) != now.get(key)):
        shown = "; ".join(f"privacy.{key}: {begun.get(key)!r} before, {now.get(key)!r} now" for key in other)
        raise DataError(f"{run_dir / JOB}: is not the job in line 1 of {path} ({shown}); {REMEDY}")
    if run_json.exists():
        ledger.compare(str(run_json), about.get("ledger"))
    try:
        spending = ledger.spending()
    except IndexError as error:
        raise DataError(f"{path}: has clients that there are not; {REMEDY}") from error
    epsilons = columns_of(spending) | others_of(spending, ledger.header.shares)
    follows = {"noise_multiplier": ledger.header.noise_multiplier, "delta": spending.privacy.delta}
    ahead = ledger.torn or about.get("exit") is None or about["ledger"]["lines"] < ledger.head.lines
    if not ahead:
        follows |= epsilons
    for name, value in follows.items() if about else ():
        said = about.get(name)
        if said != value and not _are_near(said, value):
            raise DataError(f"{run_json}: {name} = {said}, and {value} follows from {path}; {REMEDY}")
    return epsilons


def _are_near(said: object, value: object) -> bool:
    """Whether two epsilons are the same but for the version of the accountant."""
    return isinstance(said, float) and isinstance(value, float) and math.isclose(said, value, rel_tol=_NEAR)


def read_ledger(run_dir: Path) -> Contents:
    """The ledger of a run by itself; DataError when there is none, its CRCs are wrong, or its version is unknown."""
    path = run_dir / LEDGER
    try:
        whole, _, rest = content(path).rpartition(b"\n")
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}), and without it nobody knows what was released; restore the "
            "file, or start anew without --resume, into another folder"
        ) from error
    rows: list[Schema] = []
    crcs = [0]
    for number, text in enumerate(whole.split(b"\n"), 1):
        try:
            table: Table = from_json(text)
            if number == 1 and table["schema"] != SCHEMA:
                raise DataError(
                    f"{path}: has schema {table['schema']}, and this version reads {SCHEMA}; resume with that"
                )
            crc = table.pop("crc")
            expected, found = sealed(table, crcs[-1])
            if text + b"\n" != expected:
                raise ValueError(f"its crc is {crc}, and {found} follows from it and the lines before")
            rows.append(conforming(ReleasedRound if rows else Header, table))
            if isinstance(rows[-1], Header):
                _ = rows[-1].spending  # whose job and arrays are checked by it
        except _MALFORMED as error:
            raise DataError(
                f"{path}: line {number} is damaged ({type(error).__name__}: {error}"[:300] + f"); {REMEDY}"
            ) from error
        crcs.append(crc)
    header, *lines = rows
    assert isinstance(header, Header)
    return Contents(path, header, [line for line in lines if isinstance(line, ReleasedRound)], crcs[1:], bool(rest))

"""The file of a ledger: its lines, and what follows from it, compared with what the other files of its run say.

The first line is the header, with all that the accountant needs; a line for each round follows. Each ends with `"crc"`:
the CRC-32 of all lines up to it, without this key. How many rounds' lines there are, and the last CRC, are in each
checkpoint and in run.json. So damage, an edited line, and a line that is missing, swapped or written twice are found,
and so is a ledger that ends earlier than one of these files says.

The last row of the history must follow from the lines, too, where run.json has no digest of it; what run.json says of
privacy, and job.toml, from the header. What is not found: lines of rounds after that row that no other file counts yet,
where a run was killed, and files that somebody has rewritten so that they agree.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field
from pydantic_core import from_json

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.files.expected import MOST, Count, NotNegative
from mpifed.files.generations import generations
from mpifed.files.history import history_so_far
from mpifed.files.history_csv import HISTORY
from mpifed.files.json_file import content, read_json
from mpifed.files.run_folder import JOB, RUN, job_of
from mpifed.files.schemas import Manifest, RunJson, Schema, checked, conforming
from mpifed.job.schema import changes_of
from mpifed.maths.privacy.release import Release
from mpifed.maths.privacy.settings import Privacy
from mpifed.privacy.protection import ADVERSARIES, not_private, what_is_protected
from mpifed.privacy.spending import Spending

LEDGER = "ledger.jsonl"
SCHEMA = 3
REMEDY = "what was released is not known; restore the file, or start anew without --resume, into another folder"
_NEAR = 2e-4  # how far the epsilons of two versions of the accountant may be apart
_MALFORMED = (ValueError, KeyError, TypeError, OverflowError, RecursionError, AttributeError)  # of edited values
_Clients = Annotated[int, Field(ge=1, le=MOST)]
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
    clients: _Clients
    shares: Count  # of a round's noise, of clients that a server who sees the sum alone may collude with; 0: none
    release: LedgerRelease

    @property
    def spending(self) -> Spending:
        """That of no round."""
        privacy = conforming(Privacy, conforming(LedgerJob, self.job).privacy)
        values = self.release.model_dump()
        for name in ("multiplier", "rate", "paper_rate"):
            if values[name] is not None:
                values[name] = np.broadcast_to(values[name], self.clients)
        privacy = replace(privacy, noise_multiplier=self.noise_multiplier)
        return Spending(privacy, Release(**values), np.zeros(self.clients, np.int64))


class ReleasedRound(Schema):
    """A round that was run, or was about to be."""

    round: Count
    clients: Literal["all"] | list[Count]  # who take part; "all" also where who does is secret

    def added(self, spending: Spending) -> Spending:
        """The spending after it; ValueError where it has clients that there are not."""
        if self.clients == "all":
            return spending.after(True)
        present = np.zeros(len(spending.rounds), bool)
        if max(self.clients, default=0) >= len(present):
            raise ValueError("it has clients that there are not")
        present[self.clients] = True
        return spending.after(present)


class Contents(NamedTuple):
    """A ledger whose CRCs are right."""

    path: Path
    header: Header
    lines: list[ReleasedRound]
    crcs: list[int]  # up to the header and to each line
    torn: bool  # whether the last line is incomplete
    spending: Spending  # after all lines; an incomplete one of secure noise counts for everybody

    def compare(self, source: str, said: ReadOnlyTable | None) -> None:
        """DataError unless the ledger begins with the lines whose number and CRC another file states."""
        lines, wrong = len(self.lines) if said is None else said["lines"], ""
        if said is None:
            wrong = f"{source}: says nothing of {self.path}, which counts its rounds"
        elif lines > len(self.lines):
            wrong = f"{self.path}: ends with line {len(self.crcs)}, and {source} says that there is a line {lines + 1}"
        elif self.crcs[lines] != said["crc"]:
            wrong = f"{self.path}: line {lines + 1} has crc {self.crcs[lines]}, and {source} says {said['crc']}"
        if wrong:
            raise DataError(f"{wrong}; {REMEDY}")

    def follow(self, run_dir: Path, rows: Mapping[str, Array]) -> None:
        """DataError unless the last row of a run's history, read before the ledger, may follow from these lines.

        It has what was spent by then: at least all lines of its rounds, at most all lines. With noise of a test, lines
        may be missing that no disk had when the machine stopped.
        """
        spending, history = self.header.spending, run_dir / HISTORY
        if not len(rows.get("round", ())) or spending.privacy.noise != "secure":
            return
        done = int(rows["round"][-1])
        if done > len(self.lines):
            raise DataError(f"{self.path}: has {len(self.lines)} rounds, and {history} has round {done}; {REMEDY}")
        for line in self.lines:
            spending = line.added(spending) if line.round < done else spending
        all_lines = self.spending.epsilons()
        for name, value in spending.epsilons().items():
            said = float(rows[name][-1]) if name in rows else math.nan
            said = math.inf if math.isnan(said) else said  # an empty cell
            least, most = (math.inf if each is None else each for each in (value, all_lines[name]))
            if said < least * (1 - _NEAR) or said > most * (1 + _NEAR):
                raise DataError(f"{history}: {name} = {said} of round {done}, and {self.path} has {value}; {REMEDY}")


def _lines_of_checkpoints(run_dir: Path) -> dict[Path, Table]:
    """What the checkpoints say of the ledger, by manifest; --resume says what is wrong with one that cannot be read."""
    heads = {}
    for folder in generations(run_dir):
        path = folder / "manifest.json"
        with suppress(DataError):  # of a run that goes on, it may just have been removed
            head = checked(path, Manifest, read_json(path), REMEDY).ledger
            if head is not None:
                heads[path] = head.model_dump()
    return heads


def header_of(job: Table, spending: Spending, shares: int) -> Header:
    """The header of a run that begins."""
    release = spending.release._asdict()
    for name in ("multiplier", "rate", "paper_rate"):
        if release[name] is not None:
            values = release[name].tolist()
            release[name] = values[0] if len(set(values)) == 1 else values
    clients, z = len(spending.rounds), spending.privacy.multiplier
    return Header(
        job=job, noise_multiplier=z, clients=clients, shares=shares, release=conforming(LedgerRelease, release)
    )


def sealed(table: ReadOnlyTable, before: int) -> tuple[bytes, int]:
    """(the bytes of a line, the CRC up to it), from the CRC up to the line before."""
    text = json.dumps(table).encode()
    crc = zlib.crc32(text, before)
    return text[:-1] + b', "crc": %d}\n' % crc, crc


def spent(run_dir: Path) -> Table | None:
    """What a run has spent, by its ledger: a table of its epsilons; None where nothing says that it is private.

    The one function behind all that prints an epsilon of a run.

    Raises
    ------
    DataError
        when the ledger is missing or damaged, or not what run.json says; it may be ahead.
    """
    path, run_json, written = run_dir / LEDGER, run_dir / RUN, job_of(run_dir)
    about = read_json(run_json) if run_json.exists() else {}  # read before the ledger, which may grow meanwhile
    if about:
        checked(run_json, RunJson, about, REMEDY)
    of_private = {"delta", "ledger", "protects", *ADVERSARIES}
    if not path.exists() and "privacy" not in written and of_private.isdisjoint(about):
        return None
    covered = about.get("digests") is not None  # else the run goes on; run.json counts all lines, too
    rows, heads = ({}, {}) if covered else (history_so_far(run_dir), _lines_of_checkpoints(run_dir))  # before it, too
    ledger = read_ledger(run_dir)
    if written and (shown := changes_of(ledger.header.job, written)):
        raise DataError(f"{run_dir / JOB}: is not the job in line 1 of {path} ({shown}); {REMEDY}")
    if not covered:
        ledger.follow(run_dir, rows)
    for manifest, head in heads.items():
        ledger.compare(str(manifest), head)
    epsilons = ledger.spending.epsilons(ledger.header.shares)
    if not about:
        return epsilons
    ledger.compare(str(run_json), about.get("ledger"))
    privacy, once = ledger.spending.privacy, ledger.header.spending.after(True)
    follows = {
        "noise_multiplier": privacy.multiplier,
        "delta": privacy.delta,
        "protects": what_is_protected(privacy),
        "private": not_private(privacy) is None and math.isfinite(once.worst()),
    }
    ahead = ledger.torn or about.get("exit") is None or about["ledger"]["lines"] != len(ledger.lines)
    # rounds that are played again count once where noise is not secure: the last may still be to come
    if privacy.noise != "secure":
        ahead = ahead or (bool(ledger.lines) and ledger.lines[-1].round >= about["rounds"])
    if not ahead:
        follows |= dict.fromkeys([*ADVERSARIES, "colluding"]) | epsilons
    for name, value in follows.items():
        said = about.get(name)
        near = isinstance(said, float) and isinstance(value, float) and math.isclose(said, value, rel_tol=_NEAR)
        if said != value and not near:
            raise DataError(f"{run_json}: {name} = {said}, and {value} follows from {path}; {REMEDY}")
    return epsilons


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
    header, lines, crcs, torn = None, list[ReleasedRound](), [0], bool(rest)
    for number, text in enumerate(whole.split(b"\n"), 1):
        try:
            table: Table = from_json(text)
            if header is None and table["schema"] != SCHEMA:
                raise DataError(
                    f"{path}: has schema {table['schema']}, and this version reads {SCHEMA}; resume with that"
                )
            crc = table.pop("crc")
            expected, found = sealed(table, crcs[-1])
            if text + b"\n" != expected:
                raise ValueError(f"its crc is {crc}, and {found} follows from it and the lines before")
            crcs.append(crc)
            if header is None:
                header = conforming(Header, table)
                spending = header.spending
            else:
                lines.append(conforming(ReleasedRound, table))
                spending = lines[-1].added(spending)
        except _MALFORMED as error:
            raise DataError(
                f"{path}: line {number} is damaged ({type(error).__name__}: {error}"[:300] + f"); {REMEDY}"
            ) from error
    assert header is not None  # else its line is damaged
    if torn and spending.privacy.noise == "secure":
        spending = spending.after(True)
    return Contents(path, header, lines, crcs[1:], torn, spending)

"""What identifies a run beside its job: its data, the user's own sources, and the libraries that its bits depend on.

Every checkpoint contains it. A run is resumed only with the same data, and with changed sources or libraries only if
the user accepts that, which run.json and all later checkpoints record.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import mpifed
from mpifed.core.device import Device
from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Record
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.data.store import Federation
from mpifed.files.model_file import model_arrays, model_sha256
from mpifed.files.run_folder import read_run
from mpifed.job.job import Job
from mpifed.job.own_sources import sources_of
from mpifed.job.schema import changes
from mpifed.job.trace import trace_of
from mpifed.run import environment

_DIGITS = 12  # of a SHA-256, where a person reads it
_TRAINED_WITH = {"sha256": "data", "start": "[model] start", "trace": "[simulated_network] trace"}
_LIBRARIES = ("numpy", "scipy", "h5py")


class Identity(NamedTuple):
    """The identity of a run at one of its starts; on rank 0."""

    data: Table  # `sha256`, and facts that may explain a difference
    sources: dict[str, str]  # SHA-256 of the files of own classes
    libraries: dict[str, str]  # versions
    distributions: dict[str, str]  # versions of the distributions that own classes import
    blas: list[str]
    accepted: list[str]  # changes that the user has accepted

    @classmethod
    def of(cls, job: Job, data: Federation, device: Device, start: Record | None = None) -> Identity:
        """The identity of a run that starts now."""
        versions = {name: version for name, version in environment.versions().items() if name in _LIBRARIES}
        libraries = {"mpifed": _package(), **versions, "device": device.name, **device.versions}
        sources = sources_of(job)
        facts = {"sha256": data.sha256, "samples": data.samples, "options": data.provenance.get("options", {})}
        if start is not None:
            facts["start"] = model_sha256(model_arrays(start))
        if (network := job.simulated_network) is not None and network.trace is not None:
            facts["trace"] = trace_of(network.trace).sha256
        return cls(facts, sources.files, libraries, sources.distributions, environment.blas(), [])

    def resumed(self, run_dir: Path, saved: ReadOnlyTable, done: int, accept: bool) -> Identity:
        """The identity of a run that is resumed after round `done`, from what its checkpoint has `saved`.

        Raises
        ------
        DataError
            when the checkpoint does not say with which data it was made.
        UsageError
            when the data have changed; when sources or libraries have, unless the user accepts that.
        """
        if (table := saved.get("identity")) is None:
            raise DataError(f"{run_dir}: its checkpoint does not say with which data and libraries it was made")
        old = Identity(**{name: table[name] for name in Identity._fields})
        for key, what in _TRAINED_WITH.items():
            if old.data.get(key) != self.data.get(key):
                raise UsageError(
                    f"{run_dir}: --resume with other {what} ({'; '.join(changes(old.data, self.data, _short))}); give "
                    "what it began with, wherever it is now, or start anew into another --out"
                )
        before, now = ({**one.sources, **one.distributions, **one.libraries} for one in (old, self))
        other = changes(before, now, _short)
        # SciPy's BLAS, which is loaded late, may be missing on either side
        shared = old.blas and self.blas and (set(old.blas) <= set(self.blas) or set(self.blas) <= set(old.blas))
        if old.blas != self.blas and not shared:
            blas = [", ".join(one.blas) or "none known" for one in (old, self)]
            other.append(f"BLAS: {blas[0]} before, {blas[1]} now")
        if other and not accept:
            raise UsageError(
                f"{run_dir}: --resume with other sources or libraries, which may change bits ({'; '.join(other)}); "
                "go back to those of before, or go on with --accept-changed, which run.json then says"
            )
        return self._replace(accepted=[*old.accepted, *(f"after round {done}: {change}" for change in other)])

    def for_run_json(self, private: bool) -> Table:
        """The keys of run.json; without the SHA-256 of private data, by which guessed data could be confirmed."""
        about: Table = {"sources": self.sources, "distributions": self.distributions, "accepted_changes": self.accepted}
        about |= {f"{key}_sha256": self.data[key] for key in ("start", "trace") if key in self.data}
        return about if private else {"data_sha256": self.data["sha256"], **about}


def check_same_data(run_dir: Path, data: Federation) -> None:
    """UsageError where a run was trained on other data; of a private one, where they were made after it began."""
    about = read_run(run_dir)
    trained, started = about.get("data_sha256"), about.get("started") or ""
    made = str(data.provenance.get("created", ""))
    if trained is None and made > started:
        raise UsageError(
            f"{run_dir}: began at {started}, and {data.path} was made at {made}: they may be other data, as no digest "
            "of private data is kept; put the folder of before back, or train anew"
        )
    if trained not in (None, data.sha256):
        raise UsageError(
            f"{run_dir}: was trained on other data than {data.path} holds now (SHA-256 {_short(trained)} then, "
            f"{_short(data.sha256)} now); make those data again, or train anew"
        )


def _short(value: object) -> str:
    if value is None:
        return "none"
    text = str(value)
    return text[:_DIGITS] if len(text) == 64 else text


@cache
def _package() -> str:
    """Version and hash of the sources of mpifed; its loops give the same bits, compiled or not."""
    folder, digest = Path(mpifed.__file__).parent, hashlib.sha256()
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.c")]):
        digest.update(path.read_bytes())
    return f"{mpifed.__version__}, sources {digest.hexdigest()[:_DIGITS]}"

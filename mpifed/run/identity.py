"""What makes a run the same run beside its job: its data, the user's own sources, and the libraries that decide bits.

It stands in every checkpoint. A run goes on with the same data alone; and with other sources or libraries only where
the user accepts that, which run.json and all later checkpoints tell.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import mpifed
from mpifed.core.device import Device
from mpifed.core.errors import UsageError
from mpifed.run import environment
from mpifed.run.config import Job
from mpifed.run.history import dotted
from mpifed.run.own_sources import sources_of
from mpifed.shards.store import Federation

_DIGITS = 12  # of a SHA-256, where a person reads it
_LIBRARIES = ("numpy", "scipy", "h5py")


class Identity(NamedTuple):
    """Of one start of a run; on rank 0."""

    data: dict[str, Any]  # `sha256`, and what may tell a person why it is another
    sources: dict[str, str]  # SHA-256 of the files of own classes
    libraries: dict[str, str]  # versions
    distributions: dict[str, str]  # versions of what own classes import
    blas: list[str]
    accepted: list[str]  # changes with which the user has let it go on

    @classmethod
    def of(cls, job: Job, data: Federation, device: Device) -> Identity:
        """As it is now."""
        versions = {name: version for name, version in environment.versions().items() if name in _LIBRARIES}
        libraries = {"mpifed": _package(), **versions, "device": device.name, **device.versions}
        sources = sources_of(job)
        scaling = hashlib.sha256(b"".join(values.tobytes() for values in data.scaling)).hexdigest()
        facts = {
            "sha256": data.sha256, "split": data.split, "clients": data.clients, "samples": data.samples,
            "test_samples": data.test_samples, "features": data.features, "scaling": scaling[:_DIGITS],
            "options": data.provenance.get("options", {}),
        }  # fmt: skip
        return cls(facts, sources.files, libraries, sources.distributions, environment.blas(), [])

    def resumed(self, run_dir: Path, before: Mapping[str, Any], done: int, accept: bool) -> Identity:
        """The same, as that of a run that has come to round `done` with `before`.

        Raises
        ------
        UsageError
            when the data are others; when sources or libraries are, unless the user accepts that.
        """
        old = Identity(**{name: before[name] for name in Identity._fields})
        if old.data["sha256"] != self.data["sha256"]:
            told = "; ".join(_changes(old.data, self.data))
            raise UsageError(
                f"{run_dir}: --resume with other data ({told}); give the data that it began with as data.path, "
                "wherever they are now, or start anew into another --out"
            )
        found = [
            *_changes(old.sources, self.sources), *_changes(old.libraries, self.libraries),
            *_changes(old.distributions, self.distributions), *_other_blas(old.blas, self.blas),
        ]  # fmt: skip
        if found and not accept:
            raise UsageError(
                f"{run_dir}: --resume with other sources or libraries, which may change bits ({'; '.join(found)}); go "
                "back to those of before, or go on with --accept-changed, which run.json then says"
            )
        return self._replace(accepted=[*old.accepted, *(f"after round {done}: {change}" for change in found)])

    def told(self, private: bool) -> dict[str, Any]:
        """What run.json says: nothing of private data, whose SHA-256 would tell whoever can guess them."""
        about = {"sources": self.sources, "distributions": self.distributions, "accepted_changes": self.accepted}
        return about if private else {"data_sha256": self.data["sha256"], **about}


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is another in one of two tables, in words."""
    old, new = dict(dotted(before)), dict(dotted(now))
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return [f"{key}: {_short(old.get(key))} before, {_short(new.get(key))} now" for key in keys]


def _short(value: Any) -> str:
    if value is None:
        return "none"
    text = str(value)
    return text[:_DIGITS] if len(text) == 64 else text


def _other_blas(before: list[str], now: list[str]) -> list[str]:
    """One library may have been loaded by now and not then, or the other way round: that of SciPy, which comes late."""
    if set(before) <= set(now) or set(now) <= set(before):
        return []
    return [f"BLAS: {', '.join(before)} before, {', '.join(now)} now"]


@cache
def _package() -> str:
    """Version and sources of mpifed. Compiled or not, its loops have the same bits."""
    folder, digest = Path(mpifed.__file__).parent, hashlib.sha256()
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.c")]):
        digest.update(path.read_bytes())
    return f"{mpifed.__version__}, sources {digest.hexdigest()[:_DIGITS]}"

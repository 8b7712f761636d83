"""The goals of a job for its last model: limits to be met, certificates and columns to be reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mpifed.algorithms.certificate import CERTIFICATE, known
from mpifed.job.schema import JobSettings


def has_goals(job: JobSettings) -> bool:
    """Whether a job has goals for its last model, which is then evaluated whatever [record] says."""
    return bool(job.constraint or {*CERTIFICATE, "duality_gap"}.intersection(job.stop.columns))


def measured(job: JobSettings) -> bool:
    """Whether training data are evaluated at all."""
    return bool(job.record.evaluate_every or has_goals(job))


def unreached(job: JobSettings, columns: Mapping[str, float | None]) -> Iterator[str]:
    """The goals of the job that the model does not reach, one text each; empty where it reaches all.

    A limit is met if F_m <= limit_m exactly or, with a bound of `feasibility` in `[stop] reached`, up to that relative
    excess.

    Parameters
    ----------
    columns : of the history, for this model
    """
    if all(target.column != "feasibility" for target in job.stop.targets):
        for m, constraint in enumerate(job.constraint, 1):
            value = known(columns, f"constraint_{m}")
            if value is None:
                yield f"constraint {m}: its value is not known"
            elif value > (limit := constraint["limit"]):
                yield f"constraint {m}: {value:.6g} is above its limit {limit:g} by {value - limit:.2g}"
    for target in job.stop.targets:
        value = known(columns, target.column)
        if value is None or not target.is_met(value):
            now = "not known" if value is None else str(target._replace(value=value)).rpartition(" ")[2]
            yield f"[stop] reached {target} (it is {now})"

"""What a job asks of its last model: limits that are met, certificates that are reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mpifed.algorithms.certificate import CONTRADICTION, known
from mpifed.run.config import Job


def asked(job: Job) -> bool:
    """Whether a job asks anything of its last model, so that it is measured over all rows however little else is."""
    return bool(job.constraint or job.stop.certificates)


def measured(job: Job) -> bool:
    """Whether anything is measured over training data."""
    return bool(job.record.evaluate_every or asked(job))


def unreached(job: Job, columns: Mapping[str, float | None]) -> Iterator[str]:
    """What the job asks for and the model does not have, one text each; nothing where all is there.

    A limit is met if F_m <= limit_m, exactly; or, where `[stop] feasibility` says how much more will do, if that is
    not exceeded.

    Parameters
    ----------
    columns : of the history, at the model
    """
    if job.stop.feasibility is None:
        for m, one in enumerate(job.constraint, 1):
            value = known(columns, f"constraint_{m}")
            if value is None:
                yield f"constraint {m}: its value is not known"
            elif value > one["limit"]:
                yield f"constraint {m}: {value:.6g} is above its limit {one['limit']:g} by {value - one['limit']:.2g}"
    for name, most in job.stop.certificates.items():
        value = known(columns, name)
        if value is None or value > most:
            yield f"[stop] {name} = {most:g} (it is {'not known' if value is None else format(value, '.3g')})"


def contradiction(columns: Mapping[str, float | None]) -> str | None:
    """A sentence where the limits that are not met contradict each other at the model; see `feasible_direction`."""
    direction = known(columns, "feasible_direction")
    if direction is None or direction >= CONTRADICTION:
        return None
    where = f"no step shorter than {1 / direction:.3g} times its norm does" if direction else "no step does"
    return (
        "the limits contradict each other, or no model can meet them: to first order from this model "
        f"{where} (feasible_direction = {direction:.2g}); raise a limit"
    )

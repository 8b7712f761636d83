"""`mpifed new`: the text of a short job that runs as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

from mpifed.core.errors import UsageError
from mpifed.core.tables import Table
from mpifed.data import store
from mpifed.job.job import Job
from mpifed.job.schema import ALGORITHM, CLIENT, SERVER
from mpifed.job.settings import Kind, keys_of
from mpifed.text import shown

EXAMPLE = Path(__file__).with_name("quickstart.toml")  # jobs/quickstart.toml, for who has no clone
_DUAL = {"name": "hinge", "l2": 0.001}  # of two classes, with the penalty that dual variables need
_MODELS: dict[str, Table] = {
    "hyfdca": _DUAL, "cocoa": _DUAL, "bundle": _DUAL,
    "regression": {"name": "least-squares"}, "multilabel": {"name": "multilabel"},
}  # fmt: skip
# of keys that have no default
_VALUES = {
    "batch_size": 32, "learning_rate": 0.1, "mu": 0.01, "rho": 1.0, "alpha": 0.1, "s": 1.0, "p": 0.2,
    "build": "mpifed.models:cnn",
}  # fmt: skip
_DIGITS = """# Make the shards:  mpifed data digits --split rows --clients 8 --test-fraction 0.2 --out data/digits
"""
_HEADER = """# `mpifed check` says what it sends, `mpifed run` runs it. All other keys have defaults:
# `mpifed explain {algorithm}` lists those of the method, `mpifed explain` all names.

"""


def new_job(name: str, algorithm: str, data: str) -> str:
    """The text of a job; of a class of one's own without the keys that only it knows.

    Parameters
    ----------
    name : of the job
    algorithm : a name that a job can give, also "module:Class"; the model is one for it and the data
    data : folder that `mpifed data` made, or is to make

    Raises
    ------
    UsageError
        when there is no such algorithm, or it does not go with the data.
    """
    task = store.open_federation(data).task if Path(data).exists() else "classification"
    job: Table = {"name": name, "rounds": 100, "data": {"path": data}}
    job["model"] = _MODELS.get(algorithm) or _MODELS.get(task, {"name": "softmax"})
    job["algorithm"] = {"name": algorithm, **_required(ALGORITHM, "algorithm", algorithm)}
    for marked in (CLIENT, SERVER):
        optimizer = marked.of(ALGORITHM.part(algorithm))
        if optimizer is not None and (table := _required(optimizer, marked.table, "sgd")):
            job[marked.table] = table
    if algorithm in ALGORITHM.known:
        Job.check(job, "new job")
    example = _DIGITS if (algorithm, data) == ("fedavg", "data/digits") else ""  # which needs no other file
    return example + _HEADER.format(algorithm=algorithm) + tomli_w.dumps(job)


def _required(kind: Kind[Any], place: str, name: str) -> Table:  # of any class
    """The keys of a class's table that have no default."""
    try:
        part = kind.part(name)
    except UsageError as error:
        raise UsageError(f"--{place} {shown(name)}: {str(error).removeprefix('name: ')}") from error
    fields = keys_of(part).model_fields  # type: ignore[arg-type]  # classes hash
    return {key: _VALUES[key] for key, field in fields.items() if field.is_required() and key in _VALUES}

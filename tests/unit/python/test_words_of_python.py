"""Errors that were written for the command line, as those who call a function read them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import mpifed as mf
from mpifed.core.errors import UsageError
from mpifed.python.describe import as_written
from mpifed.python.ranks import in_python

RNG = np.random.default_rng(8)
X, Y = RNG.normal(size=(40, 3)), np.arange(40) % 2


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("--partition x:1: no such; use --partition iid", "partition = x:1: no such; use partition='iid'"),
        ("--out a/b c: not an empty folder; give another, or --force to replace the data",
         "out = a/b c: not an empty folder; give another, or overwrite=True to replace the data"),
        ("--min-rows joins natural clients: give --by COLUMN",
         "min_rows joins natural clients: give by COLUMN"),
        ("--partition shards:2 --skew 3: no", "partition = shards:2 skew = 3: no"),
        ("use --missing median, or --categorical one-hot", "use missing='median', or categorical='one-hot'"),
        ("--client-test-fraction 0.9: no", "client_test = 0.9: no"),
        ("use --test-fraction, or --split rows", "use test, or split='rows'"),
        ("a: x; go on with --resume --out 'a b'", "a: x; go on with resume=True, out='a b'"),
        ("go on with --set rounds=... --resume", "go on with rounds=..., resume=True"),
        ("--set stop.epsilon=... --resume", "stop={'epsilon': ...}, resume=True"),
        ("--resume with other data (x: y): no", "resume=True with other data (x: y): no"),
        ("see `mpifed show a --json`, or --resume", "see `mpifed show a --json`, or resume=True"),
        ("--to train_loss <= 1: no", "to = train_loss <= 1: no"),
        ("a -- b --- c - d", "a -- b --- c - d"),
    ],
)  # fmt: skip
def test_options_become_arguments(text: str, spoken: str) -> None:
    assert in_python(text) == spoken


def test_no_option_is_left(tmp_path: Path) -> None:
    """In what functions raise that call what commands call."""

    def data(**how: object) -> mf.FederatedDataset:
        return mf.FederatedDataset.from_arrays(X, Y, **{"clients": 4, **how})  # type: ignore[arg-type]

    good, method = data(out=tmp_path / "data"), mf.SSCA(batch_size=4)
    run = mf.run(method, good, mf.Softmax(), rounds=1, out=tmp_path / "run", progress=False)
    shutil.copytree(run.path, tmp_path / "begun")
    (tmp_path / "begun" / "run.json").unlink()

    def again(**how: object) -> mf.Run:
        return mf.run(how.pop("method", method), good, how.pop("model", mf.Softmax()),  # type: ignore[arg-type]
                      **{"rounds": 1, "out": run.path, "progress": False, **how})  # fmt: skip  # type: ignore[arg-type]

    calls: list[Callable[[], object]] = [
        lambda: data(out=tmp_path / "data"), lambda: data(partition="classes:9"), lambda: data(min_samples=30),
        lambda: data(partition="shards:2", skew=2), lambda: data(test=0.001),
        lambda: data(feature_noise=-1.0), lambda: data(clients=50), lambda: data(skew="x"), lambda: data(seed=-1),
        lambda: data(split="columns", partition="dirichlet:1"), lambda: data(split="columns", client_test=0.2),
        again, lambda: again(resume=True, seed=5), lambda: again(model=mf.LeastSquares(), overwrite=True),
        lambda: again(method=mf.VerticalSGD(batch_size=4, server_optimizer=mf.ServerSGD(0.1)), overwrite=True),
        lambda: again(record={"metrics": ["auc"]}, overwrite=True),
        lambda: again(overwrite=True, out=tmp_path / "data"),
        lambda: mf.load(tmp_path / "begun"), lambda: mf.compare(run, to="auc>=0.5"), lambda: mf.compare(run, by="loss"),
        lambda: mf.compare(run, against="x"), lambda: mf.plot(tmp_path / "data"),
        lambda: mf.plot(run, y="objectiv"), lambda: mf.sweep({"a": method}, good, mf.Softmax(), rounds=1, out=run.path),
    ]  # fmt: skip
    for number, call in enumerate(calls):
        with pytest.raises(mf.MpifedError) as raised:
            call()
        text = "".join(str(raised.value).split("`")[::2])
        assert not re.search(r"(^|\s)--[a-z]", text), f"{number}: {text}"
    with pytest.raises(
        UsageError, match=r"give another out, continue it with resume=True, or replace it with overwrite"
    ):
        again()


def test_own_classes_are_called_as_they_were_written(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class SignServer(mf.FedAvg):
        """As FedAvg."""

    data = mf.FederatedDataset.from_arrays(X, Y, clients=4)
    method = SignServer(batch_size=4, client_optimizer=mf.SGD(0.1))
    run = mf.run(method, data, mf.Softmax(), rounds=1, progress=False)
    inside = test_own_classes_are_called_as_they_were_written.__name__
    with pytest.raises(UsageError) as raised:
        run.job.to_toml(tmp_path / "job.toml")
    assert str(raised.value).startswith(
        f"to_toml: SignServer (of {inside}, in the module {__name__}): cannot be imported by another process; define it"
    )
    assert not (tmp_path / "job.toml").exists()
    assert as_written("session:Gone_77") == "Gone (of a process that has ended)"

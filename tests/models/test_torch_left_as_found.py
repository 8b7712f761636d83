"""A process after calls of mpifed, or of what it does with a network of PyTorch, is as it was before; threads too."""

from __future__ import annotations

import gc
import locale
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from gc import get_freeze_count  # the true one: see `quick_runs`
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from torch import nn

import mpifed as mf
from mpifed.core.errors import UsageError
from mpifed.maths.clipping import clipped_gradient
from mpifed.maths.objectives import TorchNetwork

RNG = np.random.default_rng(3)
X = RNG.normal(size=(90, 4))
Y = X[:, :3].argmax(axis=1)
METHOD = mf.FedAvg(batch_size=4, client_optimizer=mf.SGD(0.1))


class Stopped(mf.FedAvg):
    """It fails, as a user's class may."""

    def report(self, server: Any) -> Any:
        raise ZeroDivisionError("of the user's own")


class Interrupting(mf.FedAvg):
    def report(self, server: Any) -> Any:
        raise KeyboardInterrupt


def data() -> mf.FederatedDataset:
    return mf.FederatedDataset.from_arrays(X, Y, clients=3, test=0.2)


def found() -> dict[str, object]:
    """What a process has but once."""
    import matplotlib as mpl

    return {
        "permanent objects": get_freeze_count(),
        "collector": (gc.isenabled(), gc.get_threshold(), tuple(map(id, gc.callbacks))),
        "ends": (os._exit, sys.exit, sys.excepthook, threading.excepthook, sys.unraisablehook),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "streams": (sys.stdout, sys.stderr, sys.stdin),
        "threads": set(threading.enumerate()),
        "pools": {info["filepath"]: info["num_threads"] for info in threadpool_info()},
        "environment": dict(os.environ),
        "paths": (os.getcwd(), list(sys.path), locale.setlocale(locale.LC_ALL)),
        "errors of NumPy": (np.geterr(), np.geterrcall(), tuple(np.get_printoptions().items())),
        "warnings": list(warnings.filters),
        "logging": (list(logging.getLogger().handlers), logging.getLogger().level, logging.root.manager.disable),
        "generators": (repr(np.random.get_state()), random.getstate(), torch.get_rng_state().tolist()),  # noqa: NPY002
        "PyTorch": (
            torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(),
            torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32,
            torch.backends.cuda.matmul.allow_tf32,
        ),
        "matplotlib": dict(mpl.rcParams),
    }  # fmt: skip


def passes(build: str = "nets:dropped") -> Any:
    """All that is done with a network, of five samples."""
    objective, rng = TorchNetwork(build, (1, 8, 8)), np.random.default_rng(1)
    assert objective.check(64, 10) == []
    model = objective.start(64, 10, rng, "float32")
    X, y, keys = rng.standard_normal((1, 5, 64), "f4"), np.arange(5)[None], np.array([3])
    scores, back = objective.forward(model, X, keys)
    weights = np.ones((1, 5))
    return [
        *back(objective.slope((), scores, y, weights)).head, objective.loss((), objective.scores_of(model, X), y),
        *objective.gradient(model, X, y, weights, keys).head,
        *clipped_gradient(objective, model, X, y, weights, 0.1, False, keys).head,
    ]  # fmt: skip


def setting() -> nn.Module:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    raise ValueError("not today")


def checked(build: str) -> Callable[[], Any]:
    def call() -> None:
        for line in TorchNetwork(build).check(64, 10):
            raise UsageError(line)

    return call


def in_a_pass() -> None:
    objective = TorchNetwork("nets:without_samples", (1, 8, 8))
    model = objective.start(64, 10, np.random.default_rng(0), "float32")
    objective.scores_of(model, np.zeros((1, 0, 64), "f4"))


def of_torch() -> Any:
    return mf.run(METHOD, data(), mf.Torch("mpifed.models:mlp"), rounds=2, progress=False)


CALLS: dict[str, tuple[Callable[[], Any], type[BaseException] | None]] = {
    "run": (lambda: mf.run(METHOD, data(), mf.Softmax(), rounds=3, progress=False), None),
    "a network": (of_torch, None),
    "passes": (passes, None),
    "a module that is refused": (checked("careless:refused_wide"), UsageError),
    "a module that is refused in a pass": (checked("careless:refused_counting"), UsageError),
    "a module that fails": (checked("test_torch_left_as_found:setting"), UsageError),
    "a pass that fails": (in_a_pass, Exception),  # another by versions of PyTorch
    "a sweep": (lambda: mf.sweep({"a": METHOD}, data(), mf.Softmax(), rounds=2, seeds=2), None),
    "check": (lambda: mf.check(METHOD, data(), mf.Softmax(), rounds=3), None),
    "a plot": (lambda: mf.run(METHOD, data(), mf.Softmax(), rounds=3, progress=False).plot(), None),
    "a wrong setting": (lambda: mf.run(METHOD, data(), mf.Softmax(), rounds=0, progress=False), UsageError),
    "numbers that blow up": (
        lambda: mf.run(
            mf.FedAvg(batch_size=4, client_optimizer=mf.SGD(1e30)), data(), mf.MLP(hidden=3), rounds=9, progress=False
        ),
        mf.MpifedError,
    ),
    "an error of one's own": (lambda: failing(Stopped), ZeroDivisionError),
    "Ctrl-C": (lambda: failing(Interrupting), KeyboardInterrupt),
}


def failing(kind: Any) -> Any:
    method = kind(batch_size=4, client_optimizer=mf.SGD(0.1))
    return mf.run(method, data(), mf.Softmax(), rounds=3, progress=False)


@pytest.fixture
def of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Settings that are nobody's defaults."""
    monkeypatch.setattr(sys, "excepthook", lambda *error: None)
    monkeypatch.setattr(threading, "excepthook", lambda error: None)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    monkeypatch.setattr(gc, "get_freeze_count", get_freeze_count)
    gc.unfreeze()
    threads, mode, dtype = torch.get_num_threads(), torch.get_deterministic_debug_mode(), torch.get_default_dtype()
    torch.set_num_threads(2)
    torch.set_deterministic_debug_mode("warn")
    torch.set_default_dtype(torch.float64)
    torch.backends.cudnn.benchmark = torch.backends.cuda.matmul.allow_tf32 = True
    with threadpool_limits(2), np.errstate(divide="raise"), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("once", BytesWarning)
        yield
    signal.signal(signal.SIGUSR1, before)
    gc.freeze()  # as the session's own objects were
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode(mode)
    torch.backends.cudnn.benchmark = torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_default_dtype(dtype)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_left_as_found(name: str, of_the_user: None) -> None:
    call, error = CALLS[name]
    try:  # once before: what is imported or opened by a first call stays
        call()
    except BaseException as failed:
        assert error is not None and isinstance(failed, error), failed
    before = found()
    if error is None:
        call()
    else:
        with pytest.raises(error):
            call()
    after = found()
    assert after.keys() == before.keys()
    for what in before:
        assert after[what] == before[what], what


def test_passes_in_threads(of_the_user: None) -> None:
    """Each has the bits that it has alone, and the user's own thread its settings."""
    alone, before = [passes(), passes("nets:convolutions")], found()
    with ThreadPoolExecutor(4) as pool:
        several = list(pool.map(passes, ["nets:dropped", "nets:convolutions"] * 4))
    for number, each in enumerate(several):
        for came, expected in zip(each, alone[number % 2], strict=True):
            np.testing.assert_array_equal(came, expected)
    assert found() == before

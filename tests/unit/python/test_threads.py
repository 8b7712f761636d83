"""Two threads of a process that call mpifed, and objects of the user's that the collector need not scan."""

from __future__ import annotations

import gc
import threading
from gc import get_freeze_count  # the true one: see `quick_runs`
from typing import Any

import numpy as np

import mpifed as mf
from mpifed.core.errors import UsageError

RNG = np.random.default_rng(3)
X = RNG.normal(size=(90, 4))
Y = X[:, :3].argmax(axis=1)
METHOD = mf.FedAvg(batch_size=4, client_optimizer=mf.SGD(0.1))


def data() -> mf.FederatedDataset:
    return mf.FederatedDataset.from_arrays(X, Y, clients=3, test=0.2)


def test_objects_that_the_user_made_permanent_stay_so() -> None:
    gc.freeze()
    try:
        count = get_freeze_count()
        mf.run(METHOD, data(), mf.Softmax(), rounds=2, progress=False)
        assert count // 2 < get_freeze_count() <= count  # some are no longer there
    finally:
        gc.unfreeze()
        gc.freeze()  # as the session's own objects were


def test_two_threads() -> None:
    """The second is refused, and says so; the first is as it would be alone."""
    begun, told = threading.Event(), list[BaseException]()

    class Waiting(mf.Observer):
        def measured(self, row: Any) -> None:
            if row["round"] == 1:
                begun.set()
                other.join(60)

    def refused() -> None:
        begun.wait(60)
        try:
            mf.run(METHOD, data(), mf.Softmax(), rounds=2, progress=False)
        except UsageError as error:
            told.append(error)

    def model(**more: Any) -> Any:
        return mf.run(METHOD, data(), mf.Softmax(), rounds=3, progress=False, record={"evaluate_every": 1}, **more)

    other = threading.Thread(target=refused)
    other.start()
    watched = model(observers=[Waiting()])
    assert "another thread of this process is in a call of mpifed; call this after it" in str(told[0])
    assert watched.summary["model_sha256"] == model().summary["model_sha256"]
    elsewhere = list[Any]()
    alone = threading.Thread(target=lambda: elsewhere.append(model()))
    alone.start()
    alone.join()
    assert elsewhere[0].summary["model_sha256"] == watched.summary["model_sha256"]

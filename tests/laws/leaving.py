"""A user's script on several ranks, of which the last one does something else: `leaving.py FORM WHEN CHILD`.

FORM is how it leaves, or what it sets otherwise; WHEN is before the first, between the calls, or after the last; CHILD
is which processes it has started before, or that it alone reads results.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")


def worker(_: int) -> bool:
    """In a process of multiprocessing, which has imported this file."""
    import mpifed as mf

    return bool(mf.FedAvg)


def children(kind: str) -> None:
    """Processes that import mpifed, and end as they like."""
    import mpifed as mf

    if kind == "spawn" or kind == "fork":
        with multiprocessing.get_context(kind).Pool(2) as pool:
            assert all(pool.map(worker, range(4)))
    if kind == "subprocess":
        reads = "import mpifed as mf; mf.FederatedDataset.from_arrays([[1.0], [2.0]], [0, 1], clients=2); exit(5)"
        assert subprocess.run([sys.executable, "-c", reads], timeout=60).returncode == 5
    if kind == "fork":  # unlike a process of multiprocessing it ends as any program does
        if (child := os.fork()) == 0:
            sys.exit(6)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
    if kind == "reader":
        try:
            mf.load("no-run")
        except mf.DataError:
            print("read")


def leave(form: str) -> None:
    """As a program may."""
    if form == "raise":
        raise ValueError("mine")
    if form.startswith("exit"):
        sys.exit(int(form[-1]))


def main(form: str, when: str, child: str) -> None:
    """Data and two runs."""
    import numpy as np

    import mpifed as mf

    here = int(next(os.environ[name] for name in RANKS if name in os.environ))
    last = int(next(os.environ[name] for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE") if name in os.environ)) - 1
    X = np.arange(180.0).reshape(60, 3) % 7
    y = (X.sum(axis=1) > 8).astype(int)

    def call(moment: str) -> None:
        odd = here == last and moment == when
        if odd:
            children(child)
            leave(form)
        if odd and form == "fewer":
            return
        data = mf.FederatedDataset.from_arrays(X + (odd and form == "data"), y, clients=6)
        mf.run(
            mf.FedAvg(batch_size=5, client_optimizer=mf.SGD(0.2 if odd and form == "rate" else 0.1)),
            data,
            mf.Softmax(),
            rounds=1,
            progress="none",
        )

    call("before")
    call("between")
    if when == "after" and form in ("fewer", "rate", "data"):
        call("after")
    elif here == last and when == "after":
        children(child)
        leave(form)


if __name__ == "__main__":
    main(*sys.argv[1:])

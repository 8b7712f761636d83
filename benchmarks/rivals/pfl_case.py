"""pfl-research: FederatedAveraging on its simulated backend, two processes of one thread, without evaluation."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from work import CASE, ROUNDS, WARM_UP, Network, mark, optimizer, report, shard


class Model(Network):
    """With what pfl asks for."""

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {}


class Ticks(TrainingProcessCallback):
    """Marks the rounds."""

    def after_central_iteration(self, *given: Any, **more: Any) -> tuple[bool, Metrics]:
        mark()
        return False, Metrics()


def main() -> None:
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.ERROR)
    np.random.seed(1)  # noqa: NPY002  pfl draws from it, alike on all processes
    clients = [shard(client) for client in range(CASE.clients)]

    def user(client: int) -> Dataset:
        """The rows that a user trains on in this round, since it iterates in order."""
        X, y = clients[client]
        rows = torch.randperm(len(y)) if CASE.shuffle else torch.arange(len(y))
        rows = rows[: CASE.steps * CASE.batch or None]
        return Dataset((X[rows], y[rows]))

    everybody = MinimizeReuseUserSampler(list(range(CASE.clients)))  # each once a round
    some = lambda: int(np.random.randint(CASE.clients))  # noqa: E731, NPY002  pfl seeds it for each draw
    users = FederatedDataset(user, everybody if CASE.present == CASE.clients else some)
    model = Model()
    wrapped = PyTorchModel(model, optimizer, torch.optim.SGD(model.parameters(), 1.0))
    algorithm = NNAlgorithmParams(
        central_num_iterations=WARM_UP + ROUNDS, evaluation_frequency=WARM_UP + ROUNDS + 1,
        train_cohort_size=CASE.present, val_cohort_size=0,
    )  # fmt: skip
    training = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=CASE.step, local_batch_size=CASE.batch)
    backend = SimulatedBackend(users, users)
    FederatedAveraging().run(algorithm, backend, wrapped, training, None, [Ticks()], send_metrics_to_platform=False)
    counts = torch.tensor([model.rows, model.steps])
    torch.distributed.all_reduce(counts)
    if torch.distributed.get_rank() == 0:
        report(model, *counts.tolist())


if __name__ == "__main__":
    if "RANK" not in os.environ:
        launcher = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"
        os.execv(sys.executable, [sys.executable, *launcher, *sys.argv])
    main()

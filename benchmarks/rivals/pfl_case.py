"""pfl-research: FederatedAveraging on its simulated backend.

processes: 2 of one thread, whose sums it reduces with torch.distributed; without evaluation.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from common import Clock, given
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn.functional import cross_entropy
from torch_parts import DECAY, Network, tensors, weights

SETTINGS = ("processes",)


class Model(Network):
    """With the two methods that pfl asks for."""

    def loss(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
        self.train(not is_eval)
        return cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(self.loss(x, y, is_eval=True).item() * len(y), len(y))}


class Ticks(TrainingProcessCallback):
    """Marks the rounds."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def after_central_iteration(self, *given: Any, **more: Any) -> tuple[bool, Metrics]:
        self.clock.tick()
        return False, Metrics()


def main() -> None:
    work = given(__doc__, SETTINGS)
    case = work.case
    if "RANK" not in os.environ:
        launcher = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"
        os.execv(sys.executable, [sys.executable, *launcher, *sys.argv])
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.ERROR)
    np.random.seed(1)  # noqa: NPY002  pfl draws from it, alike on all processes
    clients = tensors(work)

    def user(client: int) -> Dataset:
        """The rows that a user trains on in this round: those of a step, or all in a new order."""
        X, y = clients[client]
        if not case.shuffle:
            return Dataset((X, y))
        rows = torch.randperm(len(y))[: case.steps * case.batch or None]
        return Dataset((X[rows], y[rows]))

    def sampler() -> Any:
        if not case.present:
            return MinimizeReuseUserSampler(list(range(case.clients)))  # each once a round
        return lambda: int(np.random.randint(case.clients))  # noqa: NPY002  pfl seeds it for each draw

    model = Model()
    wrapped = PyTorchModel(
        model, lambda parameters, lr: torch.optim.SGD(parameters, lr, weight_decay=DECAY),
        torch.optim.SGD(model.parameters(), 1.0),
    )  # fmt: skip
    present, batch = case.present or case.clients, case.batch
    users = FederatedDataset(user, sampler())
    algorithm = NNAlgorithmParams(
        central_num_iterations=work.all_rounds, evaluation_frequency=10, train_cohort_size=present,
        val_cohort_size=0,
    )  # fmt: skip
    training = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=case.step, local_batch_size=batch)
    clock = Clock(work)
    clock.start()
    FederatedAveraging().run(
        algorithm, SimulatedBackend(users, users), wrapped, training, None, [Ticks(clock)],
        send_metrics_to_platform=False,
    )  # fmt: skip
    counts = torch.tensor([model.rows, model.steps])
    torch.distributed.all_reduce(counts)
    if torch.distributed.get_rank() == 0:
        versions = {"pfl": version("pfl"), "torch": torch.__version__}
        clock.report(weights(model), *counts.tolist(), versions=versions)


if __name__ == "__main__":
    main()

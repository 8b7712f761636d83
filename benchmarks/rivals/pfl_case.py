"""pfl-research: FederatedAveraging on its simulated backend.

shipped: as its quickstart: as many threads as there are cores, and the model evaluated on every user before and after
its local training, and every 10 rounds on central data (1,000 rows here), which is what its evaluation parameters and
callback are for. bare: neither, and 1 thread; bare-threads: as many as cores; bare-processes: 2 processes, whose sums
it reduces with torch.distributed.
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
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn.functional import cross_entropy
from torch_parts import DECAY, Network, tensors, weights

SETTINGS = "shipped", "bare", "bare-threads", "bare-processes"


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
    if work.setting.endswith("processes") and "RANK" not in os.environ:
        launcher = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"
        os.execv(sys.executable, [sys.executable, *launcher, *sys.argv])
    torch.set_num_threads(1 if work.setting in ("bare", "bare-processes") else os.cpu_count() or 1)
    logging.basicConfig(level=logging.INFO if work.shipped else logging.ERROR)
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
    evaluation = NNEvalHyperParams(local_batch_size=10_000) if work.shipped else None
    clock = Clock(work)
    callbacks: list[TrainingProcessCallback] = []
    if work.shipped:
        central = torch.cat([one[0] for one in clients])[:1000], torch.cat([one[1] for one in clients])[:1000]
        callbacks.append(CentralEvaluationCallback(Dataset(central), evaluation, frequency=10))
    callbacks.append(Ticks(clock))
    clock.start()
    FederatedAveraging().run(
        algorithm, SimulatedBackend(users, users), wrapped, training, evaluation, callbacks,
        send_metrics_to_platform=work.shipped,
    )  # fmt: skip
    counts = torch.tensor([model.rows, model.steps])
    rank = 0
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(counts)
        rank = torch.distributed.get_rank()
    if rank == 0:
        versions = {"pfl": version("pfl"), "torch": torch.__version__}
        clock.report(weights(model), *counts.tolist(), versions=versions)


if __name__ == "__main__":
    main()

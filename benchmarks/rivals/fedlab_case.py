"""FedLab's standalone simulation: one process, a serial trainer, a synchronous handler.

shipped: as its standalone example: a DataLoader a client, its logger, as many threads as there are cores, without its
evaluation (which needs torchvision). memory, memory-threads: minibatches from memory; 1 thread, or as many as cores.
Its trainer has no weight decay: it is set in `setup_optim`, which it says to override. A round of FedSGD is an epoch
over one drawn minibatch.
"""

from __future__ import annotations

import logging
import os
import random
from importlib.metadata import version
from typing import Any

import torch
import torchvision_ops  # noqa: F401  (before fedlab)
from common import Clock, given
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from torch_parts import DECAY, Batches, Network, loader, tensors, weights

SETTINGS = "shipped", "memory", "memory-threads"


class Trainer(SGDSerialClientTrainer):
    """With weight decay."""

    def setup_optim(self, epochs: int, batch_size: int, lr: float) -> None:
        super().setup_optim(epochs, batch_size, lr)
        self.optimizer = torch.optim.SGD(self._model.parameters(), lr, weight_decay=DECAY)


class Clients:
    """The data set as the trainer asks for it."""

    def __init__(self, found: list[Any]) -> None:
        self.found = found

    def get_dataloader(self, client: int, batch_size: int | None = None) -> Any:
        return self.found[client]


class Pipeline(StandalonePipeline):
    """That marks the rounds in the place of evaluating."""

    clock: Clock

    def evaluate(self) -> None:
        self.clock.tick()


def main() -> None:
    work = given(__doc__, SETTINGS)
    case = work.case
    torch.set_num_threads(1 if work.setting == "memory" else os.cpu_count() or 1)
    random.seed(1)
    make = loader if work.shipped else Batches
    model = Network()
    quiet: Any = None
    if not work.shipped:
        quiet = logging.getLogger("quiet")
        quiet.setLevel(logging.ERROR)
    trainer = Trainer(model, case.clients, cuda=False, logger=quiet)
    trainer.setup_dataset(Clients([make(data, case) for data in tensors(work)]))
    trainer.setup_optim(1, case.batch, case.step)
    handler = SyncServerHandler(Network(), work.all_rounds, (case.present or case.clients) / case.clients, logger=quiet)
    pipeline = Pipeline(handler, trainer)
    pipeline.clock = Clock(work)
    pipeline.clock.start()
    pipeline.main()
    trained = trainer.model
    versions = {"fedlab": version("fedlab"), "torch": torch.__version__}
    pipeline.clock.report(weights(handler.model), trained.rows, trained.steps, versions=versions)


if __name__ == "__main__":
    main()

"""APPFL: its agents, VanillaTrainer, FedAvgAggregator and SyncScheduler; all in one process, or by MPI.

shipped: serially, as its example: DataLoader, validation after training (1,000 rows here) and logs, `optimize_memory`
on, which collects garbage many times a round, and as many threads as there are cores. serial, serial-threads: without
all that, minibatches from memory; 1 thread, or as many as cores. mpi-shipped: the same by MPI, a rank a client and one
more for the server. mpi: without, and the clients on 2 ranks ("batched clients"). Its server by MPI looks for messages
every 0.1 s, which no setting changes. Where clients are drawn, an agent stands for one that is present and gets the
data of the one drawn, since its scheduler waits for all whom it knows.
"""

from __future__ import annotations

import logging
import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torchvision_ops  # noqa: F401  (before appfl)
from appfl.agent import ClientAgent, ServerAgent
from common import Clock, Work, given
from omegaconf import OmegaConf
from torch_parts import DECAY, Batches, loader, tensors, weights

SETTINGS = "shipped", "serial", "serial-threads", "mpi-shipped", "mpi"
HERE = Path(__file__).resolve().parent


class Server(ServerAgent):
    """That marks the rounds: one ends with the last client's model."""

    clock: Clock
    received = 0

    def get_parameters(self, *given: Any, **more: Any) -> Any:
        self.clock.startup_s = None  # the last client to ask for the first model counts
        self.clock.start()
        return super().get_parameters(*given, **more)

    def global_update(self, *given: Any, **more: Any) -> Any:
        found = super().global_update(*given, **more)
        self.received += 1
        if self.received % self.num_clients == 0:
            self.clock.tick()
        return found


def plain(work: Work) -> bool:
    """Whether nothing is as shipped."""
    return not work.setting.endswith("shipped")


def server_agent(work: Work, logs: str) -> Server:
    """The server, and what it tells all clients."""
    case, present = work.case, work.case.present or work.case.clients
    kept = {"optimize_memory": False} if plain(work) else {}
    length = {"mode": "step", "num_local_steps": case.steps} if case.steps else {"mode": "epoch", "num_local_epochs": 1}
    train = {
        "trainer": "VanillaTrainer", "optim": "SGD", "optim_args": {"lr": case.step, "weight_decay": DECAY},
        "loss_fn": "CrossEntropyLoss", "train_batch_size": case.batch, "train_data_shuffle": case.shuffle,
        "metric_path": str(HERE / "appfl_parts.py"), "metric_name": "accuracy", "do_validation": not plain(work),
        "val_batch_size": 1000, "device": "cpu", "logging_output_dirname": logs, "logging_output_filename": "client",
        **length, **kept,
    }  # fmt: skip
    model = {"model_path": str(HERE / "appfl_parts.py"), "model_name": "Network"}
    server = {
        "num_clients": present, "num_global_epochs": work.all_rounds, "device": "cpu",
        "aggregator": "FedAvgAggregator", "aggregator_kwargs": {"client_weights_mode": "equal", **kept},
        "scheduler": "SyncScheduler", "scheduler_kwargs": {"num_clients": present, **kept},
        "logging_output_dirname": logs, "logging_output_filename": "server", **kept,
    }  # fmt: skip
    agent = Server(OmegaConf.create({"client_configs": {"train_configs": train, "model_configs": model},
                                     "server_configs": server}))  # fmt: skip
    agent.clock = Clock(work)
    return agent


def client_agent(work: Work, client: int, config: Any, logs: str) -> ClientAgent:
    data = {
        "dataset_path": str(HERE / "appfl_parts.py"), "dataset_name": "dataset",
        "dataset_kwargs": {"folder": str(work.data), "client": client, "held_out": 0 if plain(work) else 1000},
    }  # fmt: skip
    logged = {"logging_output_dirname": logs, "logging_output_filename": "client"}
    kept = {"optimize_memory": False} if plain(work) else {}
    agent = ClientAgent(
        OmegaConf.create({"client_id": f"client{client}", "train_configs": logged, "data_configs": data, **kept})
    )
    agent.load_config(config)
    return agent


class Clients:
    """The agents of one process, `first` to `end` of those present."""

    def __init__(self, work: Work, which: range, config: Any, logs: str) -> None:
        self.work, self.which = work, which
        self.agents = [client_agent(work, client, config, logs) for client in which]
        self.generator = torch.Generator().manual_seed(3)  # alike in all processes
        make = Batches if plain(work) else loader
        everybody = range(work.case.clients) if work.case.present else which
        self.batches = [make(data, work.case) for data in tensors(work, everybody)]
        if work.case.steps:
            self.hand_out(range(len(which)))

    def hand_out(self, drawn: Any) -> None:
        """Give each agent the minibatches of a client."""
        for agent, client in zip(self.agents, drawn, strict=True):
            agent.trainer.train_dataloader = self.batches[client]

    def train(self) -> dict[str, tuple[Any, dict[str, Any]]]:
        """The agents' models after their local steps, and what they tell beside."""
        case, found = self.work.case, {}
        if case.present:
            drawn = torch.randperm(case.clients, generator=self.generator)[: case.present].tolist()
            self.hand_out([drawn[slot] for slot in self.which])
        elif not case.steps:
            self.hand_out(range(len(self.which)))
        for agent in self.agents:
            agent.train()
            model = agent.get_parameters()
            found[agent.get_id()] = model if isinstance(model, tuple) else (model, {})
        return found

    def load(self, model: Any) -> None:
        for agent in self.agents:
            agent.load_parameters(model)

    def counts(self) -> list[int]:
        """Rows and steps of all agents so far."""
        models = [agent.trainer.model for agent in self.agents]
        return [sum(model.rows for model in models), sum(model.steps for model in models)]


def serially(work: Work, logs: str) -> None:
    server = server_agent(work, logs)
    clients = Clients(work, range(server.num_clients), server.get_client_configs(), logs)
    clients.load(server.get_parameters(serial_run=True))
    while not server.training_finished():
        models = [server.global_update(client, *told) for client, told in told_by(clients)]
        clients.load(models[-1].result())
    report(work, server, clients.counts())


def told_by(clients: Clients) -> Any:
    """Each client's answer, and no more of its metrics than the scheduler needs."""
    return [(client, (model,)) for client, (model, _) in clients.train().items()]


def by_mpi(work: Work, logs: str) -> None:
    """Rank 0 serves; the clients are on the others."""
    from appfl.comm.mpi import MPIClientCommunicator, MPIServerCommunicator
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    present, memory = work.case.present or work.case.clients, {"optimize_memory": not plain(work)}
    counts = [0, 0]
    if comm.rank == 0:
        server = server_agent(work, logs)
        MPIServerCommunicator(comm, server, logger=server.logger, **memory).serve()
    else:
        slots = range(*(present * rank // (comm.size - 1) for rank in (comm.rank - 1, comm.rank)))
        names = [f"client{slot}" for slot in slots]
        link = MPIClientCommunicator(comm, server_rank=0, client_ids=names, **memory)
        clients = Clients(work, slots, link.get_configuration(), logs)
        clients.load(link.get_global_model(init_model=True))
        running = True
        while running:
            told = clients.train()
            models, metrics = ({name: one[part] for name, one in told.items()} for part in (0, 1))
            model, status = link.update_global_model(models, kwargs=metrics)
            clients.load(model)
            running = any(one["status"] != "DONE" for one in status.values())
        link.invoke_custom_action(action="close_connection")
        counts = clients.counts()
    counts = [comm.reduce(number) for number in counts]
    if comm.rank == 0:
        report(work, server, counts)


def report(work: Work, server: Server, counts: list[int]) -> None:
    versions = {"appfl": version("appfl"), "torch": torch.__version__}
    server.clock.report(weights(server.model), *counts, versions=versions)


def main() -> None:
    work = given(__doc__, SETTINGS)
    threads = (os.cpu_count() or 1) if work.setting in ("shipped", "serial-threads") else 1
    torch.set_num_threads(threads)
    if plain(work):
        logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as logs:
        (by_mpi if work.setting.startswith("mpi") else serially)(work, logs)


if __name__ == "__main__":
    main()

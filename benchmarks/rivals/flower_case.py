"""Flower's simulation engine with its FedAvg: two workers of one thread, no evaluation, no logs."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from work import CASE, ROUNDS, WARM_UP, Network, mark, minibatches, network, optimizer, report, shard


def clients() -> ClientApp:
    """An app that trains a client; a worker keeps its network, and the data that it has met."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        rows = shard(int(context.node_config["partition-id"]))
        logging.getLogger("flwr").setLevel(logging.ERROR)
        torch.set_num_threads(1)
        model = network()
        model.rows = model.steps = 0
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        sgd = optimizer(model.parameters())
        for x, y in minibatches(rows):
            sgd.zero_grad()
            model.loss(x, y).backward()
            sgd.step()
        told = MetricRecord({"num-examples": len(rows[1]), "rows": model.rows, "steps": model.steps})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": told}), reply_to=message)

    return app


class Marked(FedAvg):
    """FedAvg that marks the rounds and counts rows."""

    rows = steps = 0

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        if failed := [reply.error for reply in replies if reply.has_error()]:
            raise SystemExit(f"{len(failed)} clients failed: {failed[0]}")
        for reply in replies:
            (told,) = reply.content.metric_records.values()
            self.rows += told["rows"]
            self.steps += told["steps"]
        found = super().aggregate_train(server_round, replies)
        mark()
        return found


server = ServerApp()


@server.main()
def play(grid: Grid, context: Context) -> None:
    """The rounds, and the report."""
    strategy = Marked(
        fraction_train=CASE.present / CASE.clients, fraction_evaluate=0.0, min_train_nodes=CASE.present,
        min_available_nodes=CASE.clients,
    )  # fmt: skip
    model = Network()
    found = strategy.start(grid, ArrayRecord(model.state_dict()), WARM_UP + ROUNDS)
    model.load_state_dict(found.arrays.to_torch_state_dict())
    report(model, strategy.rows, strategy.steps)


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    config: dict[str, Any] = {
        "client_resources": {"num_cpus": (os.cpu_count() or 1) / 2, "num_gpus": 0.0},
        "init_args": {"logging_level": logging.ERROR, "log_to_driver": False, "include_dashboard": False},
    }
    run_simulation(server, clients(), num_supernodes=CASE.clients, backend_config=config)

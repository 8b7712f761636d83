"""Flower's simulation engine, with its FedAvg strategy and its message API.

workers: two of one thread, a model kept in each, minibatches from memory, no evaluation, no logs.
"""

from __future__ import annotations

import logging
import os
from importlib.metadata import version
from typing import Any

import torch
from common import Clock, Work, given
from flower_app import client_app
from torch_parts import Network, weights

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

SETTINGS = ("workers",)


class Marked(FedAvg):
    """FedAvg that marks the rounds and counts rows."""

    clock: Clock
    rows = steps = 0

    def configure_train(self, *given: Any, **more: Any) -> Any:
        self.clock.start()
        return super().configure_train(*given, **more)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        metrics = [next(iter(reply.content.metric_records.values())) for reply in replies if not reply.has_error()]
        self.rows += sum(one["rows"] for one in metrics)
        self.steps += sum(one["steps"] for one in metrics)
        if len(metrics) < len(replies):
            raise SystemExit(f"{len(replies) - len(metrics)} clients failed: {replies[0].error}")
        found = super().aggregate_train(server_round, replies)
        self.clock.tick()
        return found


def server_app(work: Work) -> ServerApp:
    """An app that plays the rounds and reports."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        case = work.case
        present = case.present or case.clients
        strategy = Marked(
            fraction_train=present / case.clients,
            fraction_evaluate=0.0,
            min_train_nodes=present, min_available_nodes=case.clients,
        )  # fmt: skip
        strategy.clock = Clock(work)
        found = strategy.start(grid, ArrayRecord(Network().state_dict()), work.all_rounds)
        names = "flwr", "ray", "torch"
        state = {name: torch.as_tensor(value) for name, value in found.arrays.to_torch_state_dict().items()}
        strategy.clock.report(
            weights(state), strategy.rows, strategy.steps, versions={name: version(name) for name in names}
        )

    return app


def main() -> None:
    work = given(__doc__, SETTINGS)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    config: dict[str, Any] = {
        "client_resources": {"num_cpus": (os.cpu_count() or 1) / 2, "num_gpus": 0.0},
        "init_args": {"logging_level": logging.ERROR, "log_to_driver": False, "include_dashboard": False},
    }
    app = client_app(work.name, work.data)
    run_simulation(server_app(work), app, num_supernodes=work.case.clients, backend_config=config)


if __name__ == "__main__":
    main()

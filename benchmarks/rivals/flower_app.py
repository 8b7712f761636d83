"""The client of Flower's simulation, in a module of its own because Ray's workers import it."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any

import torch
from common import CASES, shards
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy
from torch_parts import DECAY, Batches, Network, Tensors


@cache
def client_data(folder: Path, client: int) -> Tensors:
    """A client's data, read when a worker first meets it."""
    x, y = shards(folder, range(client, client + 1))[0]
    return torch.from_numpy(x), torch.from_numpy(y)


@cache
def kept_network() -> Network:
    return Network()


def client_app(name: str, folder: Path) -> ClientApp:
    """An app that trains a client of a case."""
    app, case = ClientApp(), CASES[name]

    @app.train()
    def train(message: Message, context: Context) -> Message:
        data = client_data(folder, int(context.node_config["partition-id"]))
        logging.getLogger("flwr").setLevel(logging.ERROR)
        torch.set_num_threads(1)
        model = kept_network()
        model.rows = model.steps = 0
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), case.step, weight_decay=DECAY)
        for x, y in Batches(data, case):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        metrics: dict[str, Any] = {"num-examples": len(data[1]), "rows": model.rows, "steps": model.steps}
        return Message(
            RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}),
            reply_to=message,
        )

    return app

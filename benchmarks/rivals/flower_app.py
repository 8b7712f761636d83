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
from torch_parts import DECAY, Batches, Network, Tensors, loader


@cache
def client_data(folder: Path, client: int) -> Tensors:
    """A client's data, read when a worker first meets it."""
    x, y = shards(folder, range(client, client + 1))[0]
    return torch.from_numpy(x), torch.from_numpy(y)


@cache
def kept_network() -> Network:
    return Network()


def client_app(name: str, setting: str, folder: Path, threads: int) -> ClientApp:
    """An app that trains a client as the setting says."""
    app, case, shipped = ClientApp(), CASES[name], setting == "shipped"

    def begun(message: Message) -> Network:
        if not shipped:
            logging.getLogger("flwr").setLevel(logging.ERROR)
        torch.set_num_threads(threads)
        model = Network() if shipped else kept_network()
        model.rows = model.steps = 0
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        return model

    @app.train()
    def train(message: Message, context: Context) -> Message:
        data = client_data(folder, int(context.node_config["partition-id"]))
        model = begun(message)
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), case.step, weight_decay=DECAY)
        running = 0.0
        for x, y in loader(data, case) if shipped else Batches(data, case):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if shipped:
                running += loss.item()
        metrics: dict[str, Any] = {"num-examples": len(data[1]), "rows": model.rows, "steps": model.steps}
        if shipped:
            metrics["train_loss"] = running
        return Message(
            RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}),
            reply_to=message,
        )

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        X, y = client_data(folder, int(context.node_config["partition-id"]))
        X, y = X[-len(y) // 5 :], y[-len(y) // 5 :]  # a fifth, as in the quickstart
        model = begun(message)
        model.eval()
        with torch.no_grad():
            scores = model(X)
        metrics = {"num-examples": len(y), "eval_loss": cross_entropy(scores, y).item()}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app

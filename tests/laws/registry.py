"""The jobs with which the laws try every algorithm of the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from jobs_in_python import as_in_a_file

STEP = {"initial": 0.5, "exponent": 0.1}
SIZES = {"batch_size": 7, "rho": [0.9, 0.3], "gamma": [0.9, 0.35]}
BARE = {"name": "mlp", "bias": False, "hidden": 6}

NORM = {"model": BARE, "minimize": {"name": "norm"}, "constraint": [{"name": "loss", "limit": 1.5}]}
GROUPS = {
    "model": BARE | {"bias": True, "l2": 1e-3},
    "constraint": [
        {"name": "loss", "classes": [0, 1, 2], "limit": 1.2, "margin": 0.1},
        {"name": "loss", "classes": [3, 4, 5], "limit": 1.0},
        {"name": "error-rate", "classes": [6, 7, 8, 9], "limit": 0.4},
    ],
}
SMALL = {"constraint": [{"name": "norm", "limit": 6.0}]}

SPARSE = {"regularizer": {"name": "l1", "weight": 1e-3}, "model": BARE | {"l2": 1e-3, "nonconvex_penalty": 1e-2}}


def private(**settings: Any) -> dict[str, Any]:
    """[privacy] whose noise can be had again."""
    return {"privacy": {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 0.7, "noise": "test"} | settings}


BY_CHANCE = private(sampling="poisson", adjacency="add-remove", accountant="rdp")
UPLOADS = private(noise_on="upload")
TOGETHER = private(sampling="poisson", adjacency="add-remove", accountant="rdp", trust="distributed")
PEOPLE = private(level="client", trust="distributed")
PEOPLE_BY_CHANCE = private(
    level="client", trust="central", sampling="poisson", adjacency="add-remove", accountant="rdp"
)  # fmt: skip
HINGE = {"model": {"name": "hinge", "bias": False, "l2": 1e-3}}
LOGISTIC = {"model": {"name": "logistic", "bias": False, "l2": 1e-3}}
CELLS = {"model": {"name": "softmax", "bias": False, "l2": 1e-3}}  # without parameters that belong to no column
MARGIN = {"model": {"name": "hinge", "bias": False, "l2": 5e-3}}
PDM = {"batch_size": 7, "client_optimizer": {"learning_rate": STEP}, "rho": 2.0}


OF_CELLS = ("hybrid-fedavg", "hyfem", "hyfdca", "bundle")


class Case(NamedTuple):
    """One way to run an algorithm."""

    name: str
    hyper: dict[str, Any]
    tables: dict[str, Any]  # of the job, beside [algorithm]

    @property
    def algorithm(self) -> dict[str, Any]:
        """[algorithm]"""
        return {"name": self.name.removesuffix("-horizontal").removesuffix("-vertical"), **self.hyper}

    @property
    def split(self) -> str:
        """What its data are: rows, or columns, of ten classes; halves (rows), or cells, of two."""
        kinds = {"ssca-vertical": "columns", "vertical-sgd": "columns", "cocoa": "halves"}
        return kinds.get(self.name, "cells" if self.name in OF_CELLS else "rows")

    @property
    def everybody(self) -> bool:
        """Whether it needs all clients in every round."""
        rule = self.hyper.get("rule")
        return self.split == "columns" or self.name == "bundle" or rule in ("line-search", "accelerated")

    @property
    def drawn(self) -> bool:
        """Whether the seed makes a difference to more than how well a largest eigenvalue is known."""
        return self.name not in ("bundle", "hyfdca") or self.hyper.get("rule") == "paper" or "inner" in self.hyper


# by algorithm: its hyper-parameters, and the tables that a job has besides
HYPER: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "ssca-horizontal": [
        (SIZES, {}),
        (SIZES | {"tau": 0.2, "start": "paper"}, {}),
        (SIZES | {"start": "paper", "slack_cost": 50.0}, NORM),
        (SIZES | {"slack_cost": [2.0, 20.0], "stage_rounds": 2, "slack_tolerance": 1e-6}, GROUPS),
        (SIZES | {"local_steps": 3, "tau": 0.3}, {}),
        (SIZES | {"local_steps": 3, "start": "paper", "slack_cost": 20.0}, GROUPS),
        (SIZES | {"variance_reduction": "recursive", "slack_cost": 20.0}, GROUPS),
        (SIZES | {"slack_cost": "auto", "margins": "auto"}, GROUPS),
        (SIZES | {"slack_cost": "auto", "local_steps": 2}, GROUPS),
    ],
    "ssca-vertical": [
        (SIZES, {}),
        (SIZES | {"label_holder": 3}, {}),
        (SIZES | {"start": "paper", "slack_cost": 50.0, "head_client": 1}, NORM),
        (SIZES | {"slack_cost": 20.0, "label_holder": 2, "variance_reduction": "recursive"}, GROUPS),
        (SIZES | {"slack_cost": [2.0, 20.0], "stage_rounds": 2, "slack_tolerance": 1e-6}, SMALL),
        (SIZES | {"slack_cost": "auto", "margins": "auto", "variance_reduction": "recursive"}, NORM),
    ],
    "fedavg": [
        ({"batch_size": 7, "client_optimizer": {"learning_rate": STEP}}, {}),
        ({"batch_size": 7, "client_optimizer": {"learning_rate": STEP}, "local_steps": 3}, {}),
        ({"batch_size": 16, "client_optimizer": {"learning_rate": STEP}, "local_epochs": 2}, {}),
        ({"batch_size": 7, "client_optimizer": {"learning_rate": STEP}, "server_optimizer": {"momentum": 0.9}}, {}),
        ({"batch_size": 7, "client_optimizer": {"learning_rate": STEP}, "local_steps": 1}, TOGETHER),
        (
            {"batch_size": 7, "client_optimizer": {"learning_rate": STEP}, "server_optimizer": {"momentum": 0.5}},
            PEOPLE_BY_CHANCE,
        ),
    ],
    "fedprox": [
        ({"batch_size": 7, "client_optimizer": {"learning_rate": STEP}, "local_steps": 3, "mu": 0.4}, {}),
        ({"batch_size": 7, "client_optimizer": {"learning_rate": STEP}, "local_steps": 3, "mu": 0.4}, BY_CHANCE),
    ],
    "scaffold": [
        (
            {
                "batch_size": 7,
                "client_optimizer": {"learning_rate": STEP},
                "local_steps": 3,
                "server_optimizer": {"learning_rate": 0.7},
            },
            {},
        ),
        ({"batch_size": 7, "client_optimizer": {"learning_rate": STEP}, "local_steps": 3}, UPLOADS),
        ({"batch_size": 7, "client_optimizer": {"learning_rate": STEP}, "local_steps": 2}, PEOPLE),
    ],
    "fedpdm": [
        (PDM, {}),
        (PDM | {"local_steps": 8, "start": "own", "tolerance": 1.0}, SPARSE),
        (PDM | {"local_steps": 3, "local_rule": "paper"}, BY_CHANCE),
        (PDM | {"local_steps": 3, "local_rule": "fedpd", "start": "own", "tolerance": 0.5}, private()),
        (PDM | {"local_steps": 3}, UPLOADS),
        (PDM | {"local_steps": 3, "dual": "hidden"}, UPLOADS),
        (PDM | {"local_steps": 2}, PEOPLE),
    ],
    "vertical-sgd": [
        ({"batch_size": 7, "server_optimizer": {"learning_rate": STEP}}, {}),
        ({"batch_size": 7, "server_optimizer": {"learning_rate": STEP}, "label_holder": 2}, {}),
    ],
    "hybrid-fedavg": [
        (
            {
                "batch_size": 7,
                "client_optimizer": {"learning_rate": {"initial": 0.5, "exponent": 0.5, "offset": 1.0}},
                "local_steps": 3,
                "combine": "feature-blocks",
            },
            CELLS,
        ),
        ({"batch_size": 16, "client_optimizer": {"learning_rate": STEP}, "local_epochs": 2}, CELLS),
    ],
    "hyfdca": [
        ({"rule": "paper", "returns": "mean"}, MARGIN),
        ({"rule": "damped", "primal": "clear"}, MARGIN),
        ({"rule": "theory", "inner": 90, "draws": "client", "returns": "last", "gamma": [0.9, 0.2]}, MARGIN),
        (
            {"rule": "line-search", "senders": "none"},
            MARGIN | {"model": {"name": "logistic", "bias": False, "l2": 5e-3}},
        ),
        ({"rule": "accelerated"}, MARGIN | {"model": {"name": "squared-hinge", "bias": False, "l2": 5e-3}}),
    ],
    "bundle": [
        ({"planes": 3}, MARGIN),
    ],
    "hyfem": [
        ({"batch_size": 7, "client_optimizer": {"learning_rate": STEP}, "local_steps": 3, "mu": 0.4}, CELLS),
    ],
    "cocoa": [
        ({}, HINGE),
        ({"gamma": 0.5, "local_epochs": 2}, LOGISTIC),
    ],
}
CASES = [Case(name, *one) for name, many in HYPER.items() for one in many]
NAMES = [f"{name}-{number}" for name, many in HYPER.items() for number in range(len(many))]
# one of every algorithm
FEW = [
    "ssca-horizontal-6", "ssca-vertical-3", "fedavg-4", "fedprox-1", "scaffold-1", "fedpdm-5", "vertical-sgd-1",
    "cocoa-0", "hybrid-fedavg-0", "hyfem-0", "hyfdca-0", "bundle-0",
]  # fmt: skip


def table(folder: Path, algorithm: dict[str, Any], /, **changes: Any) -> dict[str, Any]:
    """A small job, as a TOML table."""
    base: dict[str, Any] = {
        "name": "law",
        "rounds": 4,
        "data": {"path": str(folder)},
        "model": {"name": "mlp", "bias": False, "hidden": 6, "l2": 1e-3},
        "algorithm": algorithm,
        "record": {"evaluate_every": 2, "checkpoint_every": 0},
    }
    found = as_in_a_file(base | changes)
    return found | {"aggregation": {"security": "plain"} | found.get("aggregation", {})}

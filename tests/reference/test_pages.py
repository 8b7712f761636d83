"""Each method with local steps against its page in the generic loop: models, what clients and the server keep.

So too compressed uploads, and two methods as a user writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import PRIVATE, local_job
from methods import METHODS
from pages import PAGES, FedPDM, Page, same

from mpifed.files.run_folder import summary
from mpifed.testing import Job, check_algorithm

STEP = {"initial": 0.4, "exponent": 0.3}
FOUR = {"participation": {"clients_per_round": 4}}
BLOCKS = {"aggregation": {"arithmetic": "exact-blocks"}}
L1 = {"regularizer": {"name": "l1", "weight": 0.02}}
NETWORK: dict[str, Any] = {"model": {"name": "mlp", "bias": False, "hidden": 5, "l2": 1e-2}}
CONCAVE: dict[str, Any] = {"model": {"name": "softmax", "bias": True, "l2": 1e-2, "nonconvex_penalty": 0.05}}
SLOW = {"participation": {"clients_per_round": 6, "stragglers": 0.5}}
WORK = [SLOW, {"participation": {"clients_per_round": 6, "stragglers": 0.5, "drop_stragglers": True}},
        {"participation": {"clients_per_round": 6},
         "simulated_network": {"deadline_s": 0.29, "speeds": [100.0, 13.0, 0.5]}}]  # fmt: skip
ADAMW, CLIP = {"name": "adamw", "learning_rate": 0.02}, {"learning_rate": 0.4, "clip_norm": 0.7}
FALLING = {"local_schedule": {"initial": 0.8, "exponent": 0.5}}
HEAVY = [{"momentum": 0.6}, {"momentum": 0.6, "nesterov": True}, {"weight_decay": 0.2}]
SERVERS = [{"learning_rate": 0.8, "momentum": 0.5}, {"learning_rate": 0.8, "momentum": 0.5, "nesterov": True}]
ADAPTIVE = {"learning_rate": {"initial": 0.1, "exponent": 0.5}}
PDM = {"prox": {"initial": 0.8, "exponent": 0.5}, "fedpd": {"initial": 0.9, "exponent": 0.3}, "paper": STEP}
TWO, THREE = {"local_epochs": 2}, {"local_steps": 3}

# name, [algorithm] beside what the method must have, [client_optimizer] beside the step, other tables
Case = tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]
CASES: list[Case] = [
    # FedAvg: many clients as one product, epochs, fewer rows than a minibatch, momentum of the server, its prox
    *(("fedavg", {"local_steps": steps}, {}, NETWORK | tables) for steps in (1, 3) for tables in ({}, FOUR, BLOCKS)),
    *(("fedavg", {"batch_size": batch, **TWO}, {}, NETWORK) for batch in (16, 1000)),
    *(("fedavg", {"batch_size": 20, "local_steps": steps}, {}, NETWORK | BLOCKS) for steps in (1, 3)),
    *(("fedavg", {"server_optimizer": SERVERS[0], **work}, {}, NETWORK | FOUR) for work in ({}, TWO)),
    ("fedavg", THREE, {}, NETWORK | L1),
    # FedProx: all penalties, with each optimizer of clients and of the server
    *(("fedprox", {"mu": 0.7, "local_steps": steps}, client, CONCAVE | FOUR | tables)
      for client in ({}, *HEAVY) for steps, tables in ((1, BLOCKS), (3, {}))),
    *(("fedprox", {"mu": 0.7, "server_optimizer": server, **THREE}, client, CONCAVE | FOUR | tables)
      for server, client in zip(SERVERS, HEAVY[:2], strict=True) for tables in ({}, L1)),
    # FedOpt
    *(("fedavg", {"server_optimizer": {"name": name, **ADAPTIVE, **given}, **THREE}, {}, FOUR)
      for name in ("adam", "yogi", "adagrad") for given in ({}, {"beta1": 0.5, "tau": 0.05})),
    # AdamW, clipping, rates by local step and with warm-up
    ("fedavg", {"local_steps": 1}, ADAMW, FOUR),
    ("fedavg", THREE, ADAMW | {"weight_decay": 0.5, "beta1": 0.5, "beta2": 0.9, "eps": 0.01}, FOUR),
    ("fedavg", TWO, ADAMW | {"clip_norm": 0.5} | FALLING, FOUR),
    ("fedavg", THREE, CLIP | {"momentum": 0.8, "weight_decay": 0.1}, FOUR),
    ("fedavg", {"local_epochs": 1}, CLIP | {"momentum": 0.8, "nesterov": True} | FALLING, FOUR),
    ("fedavg", {"local_steps": 2}, {"learning_rate": {"initial": 0.5, "exponent": 0.0, "warmup": 3}}, FOUR),
    # each record's gradient clipped by itself, and neither penalties nor what draws a client
    *((name, {**own, "local_steps": steps}, {}, FOUR | tables) for tables in PRIVATE.values() for steps in (1, 3)
      for name, own in (("fedavg", {}), ("fedprox", {"mu": 0.7}), ("scaffold", {}), ("fedpdm", {"rho": 2.0}))),
    # SCAFFOLD: steps that differ in number, a step of the server
    *(("scaffold", {"local_epochs": epochs, "batch_size": batch}, {}, FOUR) for epochs, batch in ((1, 16), (3, 1000))),
    ("scaffold", {"server_optimizer": {"learning_rate": 0.6}, "local_steps": 4}, {}, FOUR),
    # FedPDM: what the learning rate means, where steps begin, what is minimized
    *(("fedpdm", {"rho": 2.0, "local_rule": rule, "start": start, "local_steps": Q}, {"learning_rate": PDM[rule]}, {})
      for rule in PDM for start, Q in (("server", 1), ("own", 4))),
    *(("fedpdm", {"rho": 2.0, "batch_size": 5, **THREE}, {}, FOUR | L1 | {"model": {"bias": False, **model}})
      for model in ({"name": "softmax", "l2": 0.05}, {"name": "true-class-logistic", "nonconvex_penalty": 0.1})),
    # FedNova, and partial work
    ("fednova", TWO, {}, FOUR), ("fednova", {"mu": 0.0, "local_epochs": 1}, {"momentum": 0.7}, FOUR),
    ("fednova", {"mu": 0.6, **TWO}, {}, FOUR),
    *((name, {**own, "local_epochs": 3, "local_least": 2}, {}, tables) for name, own, tables in zip(
        ("fedavg", "fednova", "feddyn", "fedlin", "fedcm", "fedprox"),
        ({}, {"mu": 0.5}, {"alpha": 0.4, "weights": "rows"}, {}, {"alpha": 0.3}, {"mu": 0.7}),
        ({}, *WORK, *WORK[:2]), strict=True,
    )),
    *((name, {"local_steps": 4}, {}, tables) for name in ("fednova", "fedlin") for tables in WORK),
    # methods that correct local steps
    *((name, {"local_steps": 4}, {"momentum": 0.6}, FOUR)
      for name in ("feddyn", "fedadmm", "fedsplit", "fedsam", "fedspeed")),
    ("feddyn", {"weights": "rows", **TWO}, {}, FOUR), ("fedadmm", {"local_steps": 1}, {}, FOUR),
    ("fedadmm", {"weights": "rows", "start": "own", **TWO}, {}, FOUR),
    ("fedsplit", {"local_epochs": 1, "weights": "rows", "start": "own"}, {}, {}),
    ("fedsplit", {"start": "paper", **THREE}, {}, {}), ("fedsam", {"local_epochs": 1}, {}, FOUR),
    ("fedspeed", {"local_epochs": 1, "mix": 0.6}, {}, FOUR),
    ("delta-sgd", {"gamma": 1.5, "delta": 0.4, **TWO}, {}, FOUR),
]  # fmt: skip
SETTINGS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # of every method: data, [algorithm], other tables
    "all": ("digits", {}, {}),
    "some": ("digits", {}, FOUR),
    "unequal": ("skewed", {}, FOUR),
    "epochs": ("skewed", {"local_epochs": 2, "batch_size": 8}, FOUR),
}


def job(folder: Path, name: str, own: dict[str, Any], client: dict[str, Any], tables: dict[str, Any]) -> Job:
    if name in METHODS:
        own = {**(METHODS[name].least or {}), **own}
    if name in METHODS and METHODS[name].everybody(own):
        tables = {key: table for key, table in tables.items() if key != "participation"}
    own = {"name": name, "batch_size": 4, **own, "client_optimizer": {"learning_rate": STEP, **client}}
    return local_job(folder, own, data={"path": str(folder), "block": 3}, **tables)


@pytest.mark.parametrize(
    ("name", "setting"),
    [(name, it) for name in PAGES if name in METHODS for it in SETTINGS if it != "epochs" or PAGES[name].steps],
)
def test_the_page(request: Any, name: str, setting: str) -> None:
    data, algorithm, tables = SETTINGS[setting]
    same(job(request.getfixturevalue(data), name, algorithm or PAGES[name].steps, {}, tables))


@pytest.mark.parametrize(("name", "own", "client", "tables"), CASES, ids=str)
def test_other_settings(
    skewed: Path, name: str, own: dict[str, Any], client: dict[str, Any], tables: dict[str, Any]
) -> None:
    """Of clients whose shards are unequal."""
    same(job(skewed, name, own, client, tables))


@pytest.mark.parametrize("start", ["server", "own"])
def test_the_stopping_rule_of_fedpdm(skewed: Path, start: str) -> None:
    """(11), at which clients end after different numbers of steps, those of one block too."""
    own = {"rho": 2.0, "local_steps": 12, "start": start, "tolerance": 3.0}
    page = same(job(skewed, "fedpdm", own, {"learning_rate": {"initial": 2.0, "exponent": 0.1}}, {"rounds": 3}))
    assert isinstance(page, FedPDM) and {1, 12} < set(page.taken) and len(set(page.taken)) > 4


# name, memory, and who takes part
TOP, RAND, FINE = {"name": "top-k", "k": 40}, {"name": "rand-k", "fraction": 0.2}, {"name": "qsgd", "levels": 3}
COMPRESSED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *((one, FOUR) for one in (TOP, RAND, FINE, {"name": "natural"}, {"name": "sign"})),
    *((one | {"memory": "error-feedback"}, FOUR) for one in (TOP, RAND)),
    (TOP | {"memory": "ef21"}, FOUR),
    ({"name": "natural", "memory": "ef21"}, {}),
    ({"name": "sign", "memory": "ef21-sgdm", "alpha": 0.3}, FOUR),
    (FINE | {"memory": "ef21-sgdm"}, {}),
    (RAND | {"memory": "diana"}, FOUR),
    (FINE | {"memory": "diana", "alpha": 0.1}, {}),
]


@pytest.mark.parametrize(("compression", "tables"), COMPRESSED, ids=str)
def test_compressed_uploads(skewed: Path, compression: dict[str, Any], tables: dict[str, Any]) -> None:
    same(job(skewed, "fedavg", {"local_steps": 2}, {}, {"rounds": 6, "compression": compression, **tables}))


# --- methods as a user writes them -----------------------------------------------------------------------------------


class Recalled(Page):
    name, uniform, kept, memory = "own_pages:Recalled", True, {"": "own"}, "last"

    def begin(self) -> None:
        self.own = self.zeros.copy()

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return self.gradient(i, at, batch) + 0.1 * (at - self.x)

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        for i, y in ends.items():
            self.own[i] = y - self.x
        self.last = self.own.mean(axis=0)
        self.x = self.x + self.last


class Stretched(Page):
    name, uniform = "own_pages:Stretched", True

    def server(self, ends: dict[int, Any], taken: dict[int, int], step: float) -> None:
        D = self.mean(ends) - self.x
        far = np.mean([np.linalg.norm(y - self.x) for y in ends.values()]) / np.linalg.norm(D)
        self.last, self.x = self.x, self.x + far * D

    def judged(self) -> Any:
        return (self.x + self.last) / 2


@pytest.mark.parametrize("page", [Recalled, Stretched])
def test_a_page_of_ones_own(
    skewed: Path, tmp_path: Path, launch: Callable[..., Any], write_job: Callable[..., Path], page: type[Page]
) -> None:
    """It is its equations, keeps the laws, and has the same bits masked on two ranks."""
    same(job(skewed, page.name, THREE, {}, FOUR))
    single = job(skewed, page.name, THREE, {}, FOUR | {"compute": {"dtype": "float32"}})
    check_algorithm(single)
    path, hashes = write_job(tmp_path / "job.toml", single.table()), set()
    for ranks, security in ((None, "plain"), (2, "masked")):
        words = ("--set", f"aggregation.security={security}", "--out", tmp_path / security)
        ended = launch(ranks, "run", path, *words, cwd=Path(__file__).parent)
        assert ended.code == 0, ended.err
        hashes.add(summary(tmp_path / security)["model_sha256"])
    assert len(hashes) == 1

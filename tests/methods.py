"""Every method of mpifed, one row each: what tests of all methods must know of it. A new method is a row here.

`tests/laws/registry.py` makes jobs of the cases, which the laws, all channels and the device play. No column has a
default, so that a row without one is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mpifed.algorithms.algorithm import Algorithm
from mpifed.testing import ALGORITHMS

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


PREPARED = {"public_preparation": True}  # as partitions by labels are


def private(**settings: Any) -> dict[str, Any]:
    """[privacy] whose noise can be had again."""
    return {"privacy": {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 0.7, "noise": "test", **PREPARED, **settings}}


UPLOADS = private(noise="paper")
PEOPLE = private(level="client", trust="distributed")
PEOPLE_BY_CHANCE = private(level="client", trust="central", sampling="poisson")
HINGE = {"model": {"name": "hinge", "bias": False, "l2": 1e-3}}
LOGISTIC = {"model": {"name": "logistic", "bias": False, "l2": 1e-3}}
CELLS = {"model": {"name": "softmax", "bias": False, "l2": 1e-3}}  # without parameters that belong to no column
MARGIN = {"model": {"name": "hinge", "bias": False, "l2": 5e-3}}
PDM = {"batch_size": 7, "client_optimizer": {"learning_rate": STEP}, "rho": 2.0}

# What single clients send, and so no channel can hide from who hears the sum: a client's own columns of the first
# layer's gradient, and what the one client has computed who has the labels and the upper layer.
GRADIENTS = ["gradients.statistics", "certificate-gradients.statistics"]
LOSSES = ["all-losses.tally", "certificate-gradients.tally"]
SLOPES = ["slopes.slopes", "certificate-slopes.slopes"]

# for rows of other tables
HALF = {"learning_rate": 0.5}
FALLING = {"initial": 0.5, "exponent": 0.5, "offset": 1.0}
ONE, SEVEN = ({"batch_size": rows, "client_optimizer": HALF} for rows in (1, 7))
STEPS_OF_SSCA = {"rho": [0.9, 0.3], "gamma": [0.9, 0.35]}
SSCA = {"name": "ssca", "batch_size": 1} | STEPS_OF_SSCA
BIASED = {"name": "softmax", "bias": True, "l2": 1e-3}
SHORT_HINGE = {"name": "hinge", "bias": False, "l2": 5e-3}
SHORT_LOGISTIC = {"name": "logistic", "bias": False, "l2": 1e-3}
WIDE = {"name": "mlp", "bias": False, "hidden": 16}
ROW, PRODUCTS, LINEAR = "reconstruction", "inner-products", "linear-system"


def always(settings: dict[str, Any]) -> bool:
    return True


def never(settings: dict[str, Any]) -> bool:
    return False


class Reveals(NamedTuple):
    """The attacks that succeed on plain uploads, and a job with which they do."""

    attacks: set[str]
    data: str  # a fixture
    rounds: int
    model: dict[str, Any]
    settings: dict[str, Any]  # [algorithm]
    tables: dict[str, Any]  # of the job, besides


class Method(NamedTuple):
    """A row. A method that has a class for each split of the data has a row for each."""

    data: str  # rows, or columns, of ten classes; halves (rows), or cells, of two
    cases: list[tuple[dict[str, Any], dict[str, Any]]]  # [algorithm], and the tables that a job has besides
    short: int  # the number of the case that stands for all of them in tests that are not long
    everybody: Callable[[dict[str, Any]], bool]  # (settings) whether nobody may be absent
    drawn: Callable[[dict[str, Any]], bool]  # whether the seed makes a difference to more than an eigenvalue's estimate
    private: bool  # whether a sensitivity is proven, so that [privacy] may be set
    single: list[list[str]]  # of each case, the fields that single clients fill, which no channel can hide
    least: dict[str, Any] | None  # all that [algorithm] must have beside `batch_size`; None: of clients with cells
    control: dict[str, Any]  # [algorithm] with which plain uploads are told from random numbers
    reveals: Reveals


STEPS = {"batch_size": 7, "client_optimizer": {"learning_rate": STEP}, "local_steps": 3}
ADAMW = {"name": "adamw", "learning_rate": 0.02}
COINS = {"batch_size": 7, "client_optimizer": {"learning_rate": STEP}, "p": 0.4}
EPOCHS = {"batch_size": 16, "client_optimizer": {"learning_rate": STEP}, "local_epochs": 2}

SOME: dict[str, Any] = {"participation": {"clients_per_round": 6}}
UNSTEADY: dict[str, Any] = {
    "participation": {"clients_per_round": 6, "max_dropouts": 2},
    "simulated_network": {
        "delay_s": 1.0, "delay_spread": 1.0, "loss": 0.1, "deadline_s": 4.0, "availability": 0.8, "mean_absence": 3.0,
    },
}  # fmt: skip
LATE: dict[str, Any] = {
    "asynchrony": {"buffer": 3, "concurrency": 5},
    "simulated_network": {"delay_s": 1.0, "delay_spread": 1.0, "client_spread": 0.5, "loss": 0.1},
}
MOVING = STEPS | {"server_optimizer": {"momentum": 0.5}}
COIN: dict[str, Any] = {
    "control": SEVEN | {"p": 0.4}, "reveals": Reveals({ROW}, "digits", 2, BIASED, ONE | {"p": 1.0}, {})
}  # fmt: skip
FIRST = Reveals({ROW}, "alone", 1, BIASED | {"name": "logistic"}, {"batch_size": 1, "client_optimizer": HALF}, {})


def local(
    cases: list[tuple[dict[str, Any], dict[str, Any]]],
    private: bool,
    short: int = 0,
    everybody: Callable[[dict[str, Any]], bool] = never,
    reveals: set[str] = {ROW},  # noqa: B006
    **settings: float,
) -> Method:
    """The row of a method with local steps of SGD, whose keys beside those of FedAvg are `settings`."""
    return Method(
        data="rows",
        cases=cases,
        short=short,
        everybody=everybody,
        drawn=always,
        private=private,
        single=[[]] * len(cases),
        least={"client_optimizer": HALF, **settings},
        control=SEVEN | {"local_steps": 2} | settings,
        reveals=Reveals(reveals, "digits", 2, BIASED, ONE | settings, {}),
    )


def cells(
    cases: list[tuple[dict[str, Any], dict[str, Any]]],
    everybody: Callable[[dict[str, Any]], bool],
    drawn: Callable[[dict[str, Any]], bool],
    control: dict[str, Any],
    reveals: Reveals,
    data: str = "cells",
) -> Method:
    """The row of a method of two classes, of which nothing private is proven."""
    short, single = 0, [[] for _ in cases]
    return Method(data, cases, short, everybody, drawn, False, single, None, control, reveals)  # type: ignore[arg-type]


def columns(
    cases: list[tuple[dict[str, Any], dict[str, Any]]],
    short: int,
    single: list[list[str]],
    least: dict[str, Any] | None,
    control: dict[str, Any],
    reveals: Reveals,
) -> Method:
    """The row of a method on columns."""
    return Method("columns", cases, short, always, always, False, single, least, control, reveals)


AVERAGED = {"batch_size": 7, "client_optimizer": {"learning_rate": STEP}}
DROPPING: dict[str, Any] = {
    "participation": {"clients_per_round": 6}, "simulated_network": {"deadline_s": 1.0, "speeds": [1.0, 2.0, 5.0]}
}  # fmt: skip


def compressed(name: str, **settings: Any) -> dict[str, Any]:
    return {"compression": {"name": name, **settings}}


METHODS = {
    "ssca-horizontal": Method(
        data="rows",
        cases=[
            (SIZES, {}),
            (SIZES | {"tau": 0.2, "start": "paper"}, {}),
            (SIZES | {"start": "paper", "slack_cost": 50.0}, NORM),
            (SIZES | {"slack_cost": [2.0, 20.0], "stage_rounds": 2, "slack_tolerance": 1e-6}, GROUPS),
            (SIZES | {"variance_reduction": "recursive", "slack_cost": 20.0}, GROUPS),
            (SIZES | {"slack_cost": "auto", "margins": "auto", "returns": "best feasible"}, GROUPS),
        ],
        short=4,
        everybody=never,
        drawn=always,
        private=False,
        single=[[]] * 6,
        least={"rho": [0.5], "gamma": [0.5]},
        control=SSCA | {"batch_size": 20},
        reveals=Reveals({ROW}, "digits", 2, BARE, {"batch_size": 1} | STEPS_OF_SSCA, {}),
    ),
    "ssca-vertical": columns(
        [
            (SIZES, {}),
            (SIZES | {"label_holder": 3}, {}),
            (SIZES | {"start": "paper", "slack_cost": 50.0}, NORM),
            (SIZES | {"slack_cost": 20.0, "label_holder": 2, "returns": "best feasible"}, GROUPS),
            (SIZES | {"slack_cost": [2.0, 20.0], "stage_rounds": 2, "slack_tolerance": 1e-6}, SMALL),
            (SIZES | {"slack_cost": "auto", "margins": "auto"}, NORM),
        ],
        short=3,
        single=[
            GRADIENTS + LOSSES,
            GRADIENTS + LOSSES + SLOPES,
            GRADIENTS + LOSSES,
            GRADIENTS + LOSSES + SLOPES + ["shares.counted"],
            GRADIENTS + LOSSES,
            GRADIENTS + LOSSES,
        ],
        least=None,
        control=SSCA | {"batch_size": 5},
        reveals=Reveals(
            {PRODUCTS, LINEAR},
            "hundred",
            1,
            WIDE,
            {"batch_size": 2, "label_holder": 2} | STEPS_OF_SSCA,
            {"record": {"evaluate_every": 1}},
        ),
    ),
    "fedavg": local(
        [
            (AVERAGED, {}),
            (STEPS, {}),
            (EPOCHS, {}),
            (AVERAGED | {"server_optimizer": {"momentum": 0.9}}, {}),
            (AVERAGED | {"local_steps": 1}, PEOPLE),
            (AVERAGED | {"server_optimizer": {"momentum": 0.5}}, PEOPLE_BY_CHANCE),
            (STEPS | {"client_optimizer": ADAMW | {"clip_norm": 0.5, "local_schedule": FALLING}}, {}),
            (STEPS | {"client_optimizer": ADAMW}, private()),
            (STEPS, compressed("top-k", fraction=0.1, memory="ef21")),
            (STEPS, compressed("rand-k", k=9, memory="diana")),
            (STEPS, compressed("qsgd", levels=4, memory="ef21-sgdm")),
            (STEPS, private(level="client") | compressed("natural", memory="error-feedback")),
            (STEPS, UNSTEADY),
        ],
        short=4,
        private=True,
    )._replace(control=SEVEN),
    "fedprox": local(
        [(STEPS | {"mu": 0.4}, {}), (STEPS | {"mu": 0.4}, private())], short=1, private=True, mu=0.4
    )._replace(least={"client_optimizer": HALF, "mu": 0.1}, control=SEVEN | {"local_steps": 3, "mu": 0.4}),
    "scaffold": local(
        [
            (STEPS | {"server_optimizer": {"learning_rate": 0.7}}, {}),
            (STEPS, UPLOADS),
            (STEPS | {"local_steps": 2}, PEOPLE),
            (STEPS, compressed("sign", memory="error-feedback")),
        ],
        short=1,
        private=True,
    ),
    "fednova": local(
        [
            (EPOCHS | {"mu": 0.4}, {}),
            (EPOCHS | {"local_least": 1}, {}),
            (STEPS, SPARSE),
            (STEPS, PEOPLE),
            (STEPS, DROPPING),
        ],
        short=1,
        private=True,
        mu=0.4,
    ),
    "fedcm": local([(STEPS, SPARSE), (STEPS, UPLOADS)], short=1, private=True),
    "mime-lite": local([(STEPS, SPARSE)], private=False),
    "alone": local([(STEPS, {}), (EPOCHS, {}), (STEPS, private())], private=True),
    "fedexp": local([(STEPS, {}), (STEPS | {"weights": "uniform"}, private())], private=True),
    "fedexprox": local(
        [(STEPS | {"mu": 0.4, "most": 2.0}, {}), (STEPS | {"mu": 0.4, "alpha": 1.3}, private())], private=True, mu=0.4
    ),
    "fedvarp": local([(STEPS, SPARSE), (STEPS, UPLOADS), (STEPS, PEOPLE)], short=1, private=True),
    "fedbuff": local([(STEPS, private()), (MOVING, LATE)], private=True, short=1),
    "fedasync": local([(STEPS, private()), (STEPS | {"staleness": "hinge", "b": 1}, LATE)], private=True, short=1),
    "fedacg": local([(STEPS | {"beta": 0.1}, {}), (STEPS, UPLOADS), (STEPS, PEOPLE)], short=1, private=True),
    "feddyn": local(
        [
            (EPOCHS | {"alpha": 0.3, "weights": "rows"}, {}),
            (STEPS | {"alpha": 0.3}, UPLOADS),
            (STEPS | {"alpha": 0.3}, PEOPLE),
        ],
        short=1,
        private=True,
        alpha=0.3,
    ),
    "fedadmm": local(
        [
            (EPOCHS | {"rho": 0.3, "start": "own", "weights": "rows"}, {}),
            (STEPS | {"rho": 0.3, "start": "own"}, UPLOADS),
        ],
        short=1,
        private=True,
        rho=0.3,
    ),
    "fedsplit": local(
        [(EPOCHS | {"s": 2.0, "start": "own", "weights": "rows"}, {}), (STEPS | {"s": 2.0}, UPLOADS)],
        short=1,
        everybody=always,
        private=True,
        s=2.0,
    ),
    "fedsam": local([(STEPS | {"rho": 0.1}, {}), (STEPS | {"rho": 0.1}, PEOPLE)], private=True, rho=0.1),
    "fedspeed": local(
        [(STEPS | {"alpha": 0.3, "mix": 0.7}, {}), (STEPS | {"alpha": 0.3}, PEOPLE)], private=True, alpha=0.3
    ),
    "delta-sgd": local([(EPOCHS, {}), (STEPS, PEOPLE)], private=True),
    "fedpdm": local(
        [
            (PDM, {}),
            (PDM | {"local_steps": 8, "start": "own", "tolerance": 1.0}, SPARSE),
            (PDM | {"local_steps": 3, "local_rule": "paper"}, private()),
            (PDM | {"local_steps": 3, "local_rule": "fedpd", "start": "own", "tolerance": 0.5}, private()),
            (PDM | {"local_steps": 3}, UPLOADS),
            (PDM | {"local_steps": 2}, PEOPLE),
        ],
        short=5,
        private=True,
        rho=2.0,
    )._replace(least={"client_optimizer": HALF, "rho": 1.0}, control=SEVEN | {"rho": 2.0}),
    "proxskip": local([(COINS, {})], private=False, p=0.3)._replace(**COIN),
    "tamuna": local([(COINS | {"senders": 2}, {})], private=False, p=0.3, senders=3)._replace(**COIN),
    "fedlin": local([(STEPS, SPARSE), (EPOCHS, {})], private=False)._replace(reveals=FIRST),
    "mime": local([(STEPS, SPARSE), (EPOCHS, {})], private=False)._replace(reveals=FIRST),
    "vertical-sgd": columns(
        [
            ({"batch_size": 7, "server_optimizer": {"learning_rate": STEP}}, {}),
            ({"batch_size": 7, "server_optimizer": {"learning_rate": STEP}, "label_holder": 2}, {}),
        ],
        short=1,
        single=[GRADIENTS + LOSSES, GRADIENTS + LOSSES + SLOPES],
        least={"server_optimizer": HALF},
        control={"batch_size": 7, "server_optimizer": HALF},
        reveals=Reveals({PRODUCTS}, "hundred", 2, WIDE, {"batch_size": 2, "server_optimizer": HALF}, {}),
    ),
    "hybrid-fedavg": cells(
        [
            (STEPS | {"client_optimizer": {"learning_rate": FALLING}, "combine": "feature-blocks"}, CELLS),
            (EPOCHS, CELLS),
        ],
        never,
        always,
        control={"batch_size": 7, "client_optimizer": {"learning_rate": FALLING}},
        reveals=Reveals(
            {ROW}, "patches", 1, SHORT_LOGISTIC, {"batch_size": 1, "client_optimizer": {"learning_rate": FALLING}}, {}
        ),
    ),
    "hyfdca": cells(
        [
            ({"rule": "paper", "returns": "mean"}, MARGIN),
            ({"rule": "damped", "primal": "clear"}, MARGIN),
            ({"rule": "paper", "inner": 90, "draws": "client", "returns": "last", "gamma": [0.9, 0.2]}, MARGIN),
            ({"rule": "line-search"}, MARGIN | {"model": SHORT_HINGE | {"name": "logistic"}}),
            ({"rule": "accelerated"}, MARGIN | {"model": SHORT_HINGE | {"name": "squared-hinge"}}),
            ({"rule": "theory", "gamma": [0.9, 0.2]}, MARGIN),
        ],
        everybody=lambda settings: settings["rule"] in ("line-search", "accelerated"),
        drawn=lambda settings: settings["rule"] == "paper",
        control={"rule": "damped"},
        reveals=Reveals(
            {PRODUCTS, LINEAR},
            "squares",
            30,
            SHORT_HINGE,
            {"rule": "paper", "inner": 1},
            {"participation": {"clients_per_round": 3}},
        ),
    ),
    "bundle": cells(
        [({"planes": 3}, MARGIN)],
        always,
        never,
        control={},
        reveals=Reveals({PRODUCTS}, "squares", 12, SHORT_HINGE, {}, {"record": {"evaluate_every": 1}}),
    ),
    "hyfem": cells(
        [(STEPS | {"mu": 0.4}, CELLS)],
        never,
        always,
        control=SEVEN | {"mu": 0.4},
        reveals=Reveals({ROW}, "patches", 1, SHORT_LOGISTIC, ONE | {"mu": 0.4}, {}),
    ),
    "cocoa": cells(
        [({}, HINGE), ({"local_epochs": 2}, LOGISTIC)],
        never,
        always,
        control={},
        reveals=Reveals(set(), "alone", 2, SHORT_HINGE, {}, {}),
        data="halves",
    ),
}


def named(row: str) -> str:
    """What a job calls the method of a row."""
    return row.removesuffix("-horizontal").removesuffix("-vertical")


def class_of(row: str) -> type[Algorithm]:
    """The class that plays it."""
    split = {"columns": "columns", "cells": "grid"}.get(METHODS[row].data, "rows")
    return ALGORITHMS[named(row)].for_split(split)

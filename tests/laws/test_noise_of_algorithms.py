"""How much noise private algorithms add, and where: with features of zeros nothing but noise moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small import algorithm, answers, block_of, filled, flat

from mpifed.core.record import map_leaves
from mpifed.core.round import Round

P, L, D = 100, 30, 3000  # features, classes, and so many parameters
B, G, Z, STEP, MU, RHO = 5, 0.7, 1.3, 0.2, 0.5, 4.0
COUNTS = [20, 40, 40, 80]  # rows of the clients
REPLACED = 2 * G / B  # by how much a mean gradient moves
NOISY = {"clip": G, "noise_multiplier": Z}
PAPER = NOISY | {"noise": "paper"}
CLIENT = NOISY | {"level": "client"}
COINS = CLIENT | {"trust": "central", "sampling": "poisson"}
ETA = 1 / (RHO + 1 / STEP)  # of FedPDM's prox steps
A = 1 - ETA * RHO
PDM = {"name": "fedpdm", "batch_size": B, "client_optimizer": {"learning_rate": STEP}, "rho": RHO}
AVG = {"name": "fedavg", "batch_size": B, "client_optimizer": {"learning_rate": STEP}}
# 3000 numbers have a standard deviation within 1.3 %, and within 8 % but for one in 10^9
ROUGHLY = 0.08


def made(table: dict[str, Any], privacy: dict[str, Any], **more: Any) -> Any:
    return algorithm(table, privacy, COUNTS, P, L, {"name": "softmax", "bias": False}, **more)


@pytest.fixture
def block(array_shard: Any) -> Any:
    return block_of([(np.zeros((s, P)), np.zeros(s, dtype=np.int64)) for s in COUNTS], array_shard)


def at(index: int = 0, seed: int = 1, secure: bool = False) -> Round:
    return Round(index, seed, np.ones(len(COUNTS), dtype=bool), secure)


BEGINNING = pytest.mark.parametrize("noise", [{"noise": "test"}, {"noise": "secure"}], ids=["keyed", "secure"])


def uncorrelated(found: Any) -> None:
    """Rows of numbers that have nothing to do with each other."""
    assert np.abs(np.corrcoef(found)[np.triu_indices(len(found), 1)]).max() < 6.2 / np.sqrt(found.shape[1])


# what clients upload in the first round: algorithm, [privacy], the standard deviation
LOCAL: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "gradients": (AVG, NOISY, STEP * Z * REPLACED),
    "gradients, 4 steps": (AVG | {"local_steps": 4}, NOISY, STEP * Z * REPLACED * 2),
    "gradients, fedprox": (
        AVG | {"name": "fedprox", "mu": MU, "local_steps": 3}, NOISY,
        STEP * Z * REPLACED * np.sqrt(sum((1 - STEP * MU) ** (2 * r) for r in range(3))),
    ),
    "gradients, scaffold": (AVG | {"name": "scaffold", "local_steps": 4}, NOISY, STEP * Z * REPLACED * 2),
    "gradients, fedpdm": (
        PDM | {"local_steps": 3}, NOISY, 2 * ETA * Z * REPLACED * np.sqrt(sum(A ** (2 * r) for r in range(3))),
    ),
    "paper": (AVG, PAPER, Z * STEP * 2 * G),
    "paper, 3 steps": (AVG | {"local_steps": 3}, PAPER, Z * STEP * 6 * G),
    "paper, fedprox": (
        AVG | {"name": "fedprox", "mu": MU, "local_steps": 2}, PAPER, Z * STEP * 2 * G * (2 - STEP * MU),
    ),
    "paper, scaffold": (AVG | {"name": "scaffold", "local_steps": 3}, PAPER, Z * STEP * 6 * G),
    "paper, feddyn": (
        AVG | {"name": "feddyn", "alpha": MU, "local_steps": 2}, PAPER, Z * STEP * 2 * G * (2 - STEP * MU),
    ),
    "paper, fedadmm": (AVG | {"name": "fedadmm", "rho": MU}, PAPER, Z * 2 * STEP * 2 * G),
    "paper, fedpdm": (PDM | {"local_steps": 2}, PAPER, Z * 2 * ETA * 2 * G * (1 + A)),
    "client, fedsam": (AVG | {"name": "fedsam", "local_steps": 2}, CLIENT, Z * G),
    "client": (AVG | {"local_steps": 3}, CLIENT, Z * G),
    "client, fedpdm": (PDM, CLIENT, Z * G),
}  # fmt: skip


@BEGINNING
@pytest.mark.parametrize(("table", "privacy", "expected"), LOCAL.values(), ids=LOCAL)
def test_every_client_adds_its_own(table: Any, privacy: Any, expected: float, noise: Any, block: Any) -> None:
    """In both halves; of the paper it is always the seed's."""
    one = made(table, noise | privacy)
    found = answers(one, block, at(secure=noise["noise"] == "secure"))[1]
    assert found.std(axis=1) == pytest.approx([expected] * len(COUNTS), rel=ROUGHLY)
    assert np.abs(found.mean(axis=1)).max() < 6.2 * expected / np.sqrt(D)
    uncorrelated(found)
    uncorrelated(found.reshape(2 * len(COUNTS), D // 2))


# how the mean moves: algorithm, [privacy], the standard deviation with everybody present
SUMS: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "clients, distributed": (AVG, CLIENT | {"trust": "distributed"}, Z * G / 4),
    "clients, central": (PDM, CLIENT | {"trust": "central"}, Z * G / 4),
    "scaffold, distributed": (AVG | {"name": "scaffold"}, CLIENT | {"trust": "distributed"}, Z * G / 4),
    "by chance": (  # divided by how many come on average
        AVG, CLIENT | {"trust": "central", "sampling": "poisson"}, Z * G / 2,
    ),
}  # fmt: skip


@BEGINNING
@pytest.mark.parametrize(("table", "privacy", "expected"), SUMS.values(), ids=SUMS)
def test_noise_of_the_mean(table: Any, privacy: Any, expected: float, noise: Any, block: Any) -> None:
    """The present share it, or the server adds it."""
    one, now = made(table, noise | privacy, clients_per_round=2), at(secure=noise["noise"] == "secure")
    (exchange,), server = one.exchanges, one.start_server(now._replace(index=-1))
    answer = exchange.answer(one.start_clients(block, now), exchange.ask(server, now), block, now)[1]
    total = map_leaves(lambda leaf: leaf.sum(axis=0), answer)
    assert np.std(one.model(exchange.absorb(server, total, now)).first) == pytest.approx(expected, rel=ROUGHLY)
    assert privacy["trust"] != "central" or not flat(answer.value).any()


@pytest.mark.parametrize("name", ["gradients, fedpdm", "paper", "client"])
def test_noise_is_a_function_of_seed_round_and_client(name: str, block: Any) -> None:
    """Whoever else is present or in the block; that which is secure cannot be had again."""
    table, privacy, _ = LOCAL[name]
    one = made(table, privacy)
    whole = answers(one, block, at())[1]
    for who in ([0], [1, 3], [0, 1, 2, 3]):
        some = at().only(np.isin(np.arange(4), who))
        np.testing.assert_array_equal(answers(one, block.only(np.array(who)), some)[1], whole[who])
    others = [answers(one, block, now)[1] for now in (at(), at(1), at(0, 2))]
    if name != "paper":
        secure = made(table, privacy | {"noise": "secure"})
        others += [answers(secure, block, at(secure=True))[1] for _ in range(2)]
    uncorrelated(np.concatenate(others))


# --- what is said to be released ------------------------------------------------------------------------------------

SHARES = B / np.array(COUNTS)
# algorithm, [privacy], and of each client: mechanisms, multiplier, rate
RELEASES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[int, Any, Any]]] = {
    "gradients": (AVG | {"local_steps": 3}, NOISY, (3, Z, SHARES)),
    "gradients, scaffold": (AVG | {"name": "scaffold", "local_steps": 4}, NOISY, (4, Z, SHARES)),
    "gradients, fedpdm": (PDM | {"local_steps": 2, "start": "own", "tolerance": 0.1}, NOISY, (2, Z, SHARES)),
    "whole shards": (AVG | {"batch_size": 20}, NOISY, (1, Z, np.array(COUNTS) ** -1.0 * 20)),
    "paper": (AVG | {"local_steps": 3}, PAPER, (1, Z, 3 * SHARES)),
    "paper, fedpdm": (PDM | {"local_steps": 2}, PAPER, (1, Z, 2 * SHARES)),
    "clients": (AVG, CLIENT, (1, Z, 1)),
    "clients, distributed": (AVG, CLIENT | {"trust": "distributed"}, (1, Z, 1)),
    "clients, central": (AVG, CLIENT | {"trust": "central"}, (1, Z, 1)),
    "coins": (AVG, COINS, (1, Z, 1 / 2)),
    "coins, fedpdm": (PDM, COINS, (1, Z, 1)),  # who remembers, is in every round it was in
    "coins, scaffold": (AVG | {"name": "scaffold"}, COINS, (1, Z, 1)),
    "coins, feddyn": (AVG | {"name": "feddyn", "alpha": MU}, COINS, (1, Z, 1)),
    "coins, delta-sgd": (AVG | {"name": "delta-sgd"}, COINS, (1, Z, 1 / 2)),
}


@pytest.mark.parametrize(("table", "privacy", "expected"), RELEASES.values(), ids=RELEASES)
def test_what_a_round_is_said_to_release(table: Any, privacy: Any, expected: Any) -> None:
    mechanisms, multiplier, rate = expected
    found = made(table, privacy, clients_per_round=2).released()
    assert found.mechanisms == mechanisms
    told = found.multiplier / multiplier
    # rounding towards zero moves nobody away from anybody
    low, high = (1 - 1e-6, 1) if privacy.get("level") == "client" else (1 - 1.1e-3, 1 - 2e-4)
    assert (told == 1).all() if "noise" in privacy else ((low < told) & (told < high)).all()
    np.testing.assert_allclose(found.rate, np.broadcast_to(rate, 4), rtol=1e-12)
    assert found.by_chance == (privacy.get("level") == "client" and (np.asarray(rate) < 1).all())


# --- what clients keep ----------------------------------------------------------------------------------------------


def half_dual(before: Any, upload: Any) -> dict[str, Any]:
    """FedPDM: lambda+ = lambda/2 + rho (x_0 - y~)/2."""
    return {"dual": (before - RHO * upload) / 2}


def model_and_dual(before: Any, upload: Any) -> dict[str, Any]:
    """FedADMM: y_i = (u + y_i + x) / 2 and lambda_i += rho (y_i - x) of the upload u; x and y_i are 0 before."""
    return {"model": upload / 2, "dual": before + MU * upload / 2}


def control(before: Any, upload: Any) -> dict[str, Any]:
    """SCAFFOLD: c_i - c - upload / (Q step), c being zero."""
    return {"": before - upload / (3 * STEP)}


DISTRIBUTED = CLIENT | {"trust": "distributed"}
KEPT = [
    (PDM, PAPER, half_dual), (PDM, CLIENT, half_dual),
    (AVG | {"name": "fedadmm", "rho": MU, "start": "own"}, PAPER, model_and_dual),
    *((AVG | {"name": "scaffold", "local_steps": 3}, privacy, control) for privacy in (PAPER, CLIENT, DISTRIBUTED)),
]  # fmt: skip


@pytest.mark.parametrize(("table", "privacy", "law"), KEPT)
def test_what_clients_keep_follows_from_what_was_released(table: Any, privacy: Any, law: Any, block: Any) -> None:
    one, numbers = made(table, privacy), np.random.default_rng(3).normal(size=(len(COUNTS), D))
    begun = one.start_clients(block, at())
    before = begun._replace(dual=filled(begun.dual, numbers)) if hasattr(begun, "dual") else filled(begun, numbers)
    after, upload = answers(one, block, at(), states=before)
    atol = 1e-11 if law is control else 1e-12
    for name, expected in law(numbers, upload).items():
        np.testing.assert_allclose(flat(getattr(after, name) if name else after), expected, rtol=0, atol=atol)

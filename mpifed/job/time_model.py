"""A time model of a deployment: the seconds that a run would take over a network, from the costs of its exchanges.

Overman, Blum and Klabjan, *A Primal-Dual Algorithm for Hybrid Federated Learning* (arXiv:2210.08106), section 5, plot
such times, with published times of encryption and figures of named networks. Here they follow from what each exchange
was measured to send, encrypt and compute, for every algorithm and channel. Each execution of an exchange takes

    latency_s + up / up_bytes_per_s + down / down_bytes_per_s + cryptography + slowdown * answer + server

where up and down are the bytes of the client who uploads, and who downloads, the most, and answer is the arithmetic of
the slowest client: clients compute in parallel, and the server waits for the last. A sum that clients receive is sent
with the next broadcast, so an exchange is a single round trip, or none if no client uploads. The bandwidth of the
server is assumed not to be the bottleneck.

With published encryption each value of a private exchange takes the published seconds and bytes, whatever the run's
channel: clients upload ciphertexts and download those of the sum; a sum for the server is decrypted by one of them, who
uploads it in the clear. Broadcasts are in the clear too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from mpifed.core.tables import Table

if TYPE_CHECKING:
    from mpifed.algorithms.algorithm import Algorithm
    from mpifed.job.schema import SimulatedNetwork

Account = Mapping[str, float]  # costs of an exchange, as `mpifed.comm.costs.Account` counts them
Seconds = dict[str, float]  # by `KINDS`

KINDS = ("compute", "encryption", "latency", "transfer", "server")
KEYS = "keys"  # the account of the key agreement, which is not an exchange
FIGURES = ("latency_s", "up_bytes_per_s", "down_bytes_per_s")
PER_VALUE = ("encrypt_s", "decrypt_s", "add_s", "ciphertext_bytes", "ciphertext_values")  # keys of published encryption


def _link(latency_ms: float, up_mbit_per_s: float, down_mbit_per_s: float) -> dict[str, float]:
    return dict(zip(FIGURES, (latency_ms / 1e3, up_mbit_per_s * 1e6 / 8, down_mbit_per_s * 1e6 / 8), strict=True))


PRESETS = {  # of a single client's link
    # J. Dean, Numbers Everyone Should Know (LADIS 2009), and E. Jones, Network latencies (2021); Amazon EC2 User Guide,
    # a single flow within a cluster placement group
    "data-center": _link(0.5, 10_000, 10_000),
    # cloudping.co, AWS ap-east-1 to us-west-2; Amazon EC2 User Guide, a single flow elsewhere
    "inter-region": _link(146.27, 5_000, 5_000),
    # here and of satellites: Ookla, How Starlink's Satellite Internet Stacks Up, Speedtest medians, United States, 2nd
    # quarter of 2021: all fixed lines, Starlink, Viasat
    "broadband": _link(14.0, 17.18, 115.22),
    # Opensignal, Mobile Network Experience, United States, means of T-Mobile, as reported by Telecompetitor, Average
    # Mobile Download Speeds Exceed 20 Mbps for Verizon and T-Mobile
    "lte": _link(60.6, 6.7, 21.1),
    "satellite-leo": _link(45.0, 13.89, 97.23),
    "satellite-geo": _link(630.0, 3.38, 18.13),
}


def figures(table: SimulatedNetwork) -> dict[str, float]:
    """Latency and rates, by `FIGURES`: the table's own, else those of the network that it names."""
    named = PRESETS[table.name] if table.name is not None else {}
    return named | {key: value for key in FIGURES if (value := getattr(table, key)) is not None}


class Simulation(NamedTuple):
    """The seconds that a run would have taken so far, by exchange and kind."""

    set_up: dict[str, Seconds]  # done once: key agreement, and the algorithm's set-up exchanges
    rounds: dict[str, Seconds]

    @property
    def total_s(self) -> float:
        """The sum of all seconds."""
        return sum(sum(seconds.values()) for part in self for seconds in part.values())


def played_once(algorithm: Algorithm) -> set[str]:
    """Names of the exchanges that are run only before the first round."""
    return {exchange.name for exchange in algorithm.setup} - {exchange.name for exchange in algorithm.exchanges}


def simulate(
    table: SimulatedNetwork, accounts: Mapping[str, Account], once: Collection[str], clients: int
) -> Simulation:
    """The time model of `[simulated_network]`, from the costs of the exchanges.

    Parameters
    ----------
    table : the network, and the times of cryptography
    accounts : of each exchange and of `KEYS`, without evaluation
    once : names of exchanges, as `played_once` gives them
    clients : N, of the federation
    """
    seconds_by_exchange = {name: _seconds(table, account) for name, account in accounts.items() if name != KEYS}
    set_up = {name: seconds for name, seconds in seconds_by_exchange.items() if name in once}
    if table.encryption == "as-run" and KEYS in accounts:
        keys = _keys(table, accounts[KEYS], clients)
        set_up = {KEYS: keys, **set_up} if any(keys.values()) else set_up
    return Simulation(set_up, {name: seconds for name, seconds in seconds_by_exchange.items() if name not in once})


def described(table: SimulatedNetwork, simulation: Simulation) -> Table:
    """A simulation with its assumptions, for run.json."""
    network = {"name": table.name, **figures(table), "client_slowdown": table.client_slowdown}
    per_value = {key: getattr(table, key) for key in PER_VALUE}
    cryptography = {"encryption": table.encryption, **(per_value if table.encryption == "published" else {})}
    return {"network": network | cryptography, "set_up": simulation.set_up, "rounds": simulation.rounds}


def _seconds(table: SimulatedNetwork, account: Account) -> Seconds:
    """Seconds of all executions of an exchange."""
    link, sealed, opened, added = figures(table), account["sealed_most"], account["opened_most"], account["added"]
    up, down, cryptography = account["up_most"], account["down_most"], 0.0
    if table.encryption == "published" and (sealed or opened):
        encrypted, decrypted = (_ciphertexts(table, values, account["played"]) for values in (sealed, opened))
        up = encrypted * table.ciphertext_bytes + account["up_clear"]
        down = decrypted * table.ciphertext_bytes + account["down_clear"]
        cryptography = (
            encrypted * table.encrypt_s + decrypted * table.decrypt_s
        ) * table.ciphertext_values + added * table.add_s
    elif table.encryption == "as-run":
        # clients encrypt one after the other here, and in parallel there: the busiest takes its share of the total
        cryptography = account["crypto_s"] * (sealed / added if added else 1.0)
    return {
        "compute": account["answer_s"] * table.client_slowdown,
        "encryption": cryptography,
        "latency": account["played"] * link["latency_s"] if account["up_most"] else 0.0,
        "transfer": up / link["up_bytes_per_s"] + down / link["down_bytes_per_s"],
        "server": account["server_s"],
    }


def _ciphertexts(table: SimulatedNetwork, values: float, played: float) -> float:
    """The number of ciphertexts for `values`, which were sent in `played` messages."""
    if table.ciphertext_values == 1 or not played:
        return values
    return played * math.ceil(values / played / table.ciphertext_values)


def _keys(table: SimulatedNetwork, account: Account, clients: int) -> Seconds:
    """Seconds of the mean client, who agrees on keys with all its partners in a single round trip."""
    link = figures(table)
    up, down = account["up_bytes"] / clients, account["down_bytes"] / clients
    return dict.fromkeys(KINDS, 0.0) | {
        "encryption": account["crypto_s"] / clients,
        "latency": link["latency_s"] if up else 0.0,
        "transfer": up / link["up_bytes_per_s"] + down / link["down_bytes_per_s"],
    }

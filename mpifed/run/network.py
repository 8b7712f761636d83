"""How long a run would take its clients over a network: a time model of the accounts of its exchanges.

Overman, Blum and Klabjan, *A Primal-Dual Algorithm for Hybrid Federated Learning* (arXiv:2210.08106), section 5, plot
such times, with published times of encryption and figures of named networks. Here they follow from what each exchange
has been found to send, seal and compute, so that every algorithm has them, in any channel. Each time an exchange is
played takes

    latency_s + up / up_bytes_per_s + down / down_bytes_per_s + cryptography + slowdown * answer + server

where up and down are the bytes of the client who sends, and who is told, the most, and answer is the arithmetic of the
slowest client: clients work side by side, and the server waits for the last. A sum that clients are told travels with
the next question, so an exchange is one round trip; one in which nobody answers is none. The server's own line is taken
to be wide enough.

With published encryption each value of a private exchange takes so many seconds and bytes, whatever the run's channel:
clients send their ciphertexts, and are told those of the sum; a sum for the server is opened by one of them, who sends
it back in the clear. So do questions travel.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mpifed.core.algorithm import Algorithm
    from mpifed.run.tables import SimulatedNetworkTable

Account = Mapping[str, float]  # what an exchange has cost, as `mpifed.comm.channel.Account` counts it
Seconds = dict[str, float]  # by `KINDS`

KINDS = ("compute", "encryption", "latency", "transfer", "server")
KEYS = "keys"  # the account of the agreement on keys, which is no exchange
FIGURES = ("latency_s", "up_bytes_per_s", "down_bytes_per_s")
PER_VALUE = ("encrypt_s", "decrypt_s", "add_s", "ciphertext_bytes", "ciphertext_values")  # keys of published encryption


class Preset(NamedTuple):
    """A network with published figures; of one client."""

    latency_ms: float  # of a round trip
    up_mbit_per_s: float
    down_mbit_per_s: float
    source: str

    @property
    def figures(self) -> dict[str, float]:
        """By the keys of `[simulated_network]`."""
        rates = (self.up_mbit_per_s * 1e6 / 8, self.down_mbit_per_s * 1e6 / 8)
        return dict(zip(FIGURES, (self.latency_ms / 1e3, *rates), strict=True))


_OOKLA = "Ookla, How Starlink's Satellite Internet Stacks Up, Speedtest medians, United States, 2nd quarter of 2021"
_OPENSIGNAL = (
    "Opensignal, Mobile Network Experience, United States, means of T-Mobile, as told by Telecompetitor, Average "
    "Mobile Download Speeds Exceed 20 Mbps for Verizon and T-Mobile"
)
PRESETS = {
    "data-center": Preset(
        0.5, 10_000, 10_000,
        "round trip: J. Dean, Numbers Everyone Should Know (LADIS 2009), and E. Jones, Network latencies (2021); rate: "
        "Amazon EC2 User Guide, a single flow within a cluster placement group",
    ),
    "inter-region": Preset(
        146.27, 5_000, 5_000,
        "round trip: cloudping.co, AWS ap-east-1 to us-west-2; rate: Amazon EC2 User Guide, a single flow elsewhere",
    ),
    "broadband": Preset(14.0, 17.18, 115.22, f"{_OOKLA}, all fixed lines"),
    "lte": Preset(60.6, 6.7, 21.1, _OPENSIGNAL),
    "satellite-leo": Preset(45.0, 13.89, 97.23, f"{_OOKLA}, Starlink"),
    "satellite-geo": Preset(630.0, 3.38, 18.13, f"{_OOKLA}, Viasat"),
}  # fmt: skip


def figures(table: SimulatedNetworkTable) -> dict[str, float]:
    """Latency and rates, by `FIGURES`: the table's own, else those of the network that it names."""
    named = PRESETS[table.name].figures if table.name is not None else {}
    own = {key: value for key in FIGURES if (value := getattr(table, key)) is not None}
    return named | own


def wrong_network(table: SimulatedNetworkTable | None) -> Iterator[str]:
    """What the table lacks, in one message."""
    missing = [key for key in FIGURES if key not in figures(table)] if table is not None else []
    if missing:
        yield f"[simulated_network] {', '.join(missing)}: missing; give a number, or name = one of {', '.join(PRESETS)}"


class Simulation(NamedTuple):
    """The seconds that a run would have taken so far, by exchange and kind."""

    set_up: dict[str, Seconds]  # what is done once: keys, and what the algorithm plays before its first round
    rounds: dict[str, Seconds]

    @property
    def total_s(self) -> float:
        """All of them."""
        return sum(sum(one.values()) for part in self for one in part.values())


def played_once(algorithm: Algorithm) -> set[str]:
    """Names of the exchanges that are played before the first round alone."""
    return {one.name for one in algorithm.setup} - {one.name for one in algorithm.exchanges}


def simulate(
    table: SimulatedNetworkTable, accounts: Mapping[str, Account], once: Collection[str], clients: int
) -> Simulation:
    """The time model of `[simulated_network]`, from what the exchanges have cost.

    Parameters
    ----------
    table : which network, and whose times of cryptography
    accounts : of each exchange and of `KEYS`; what was played to measure is in none of them
    once : names of exchanges, as `played_once` gives them
    clients : N, of the federation
    """
    found = {name: _seconds(table, account) for name, account in accounts.items() if name != KEYS}
    set_up = {name: seconds for name, seconds in found.items() if name in once}
    if table.encryption == "as-run" and KEYS in accounts:
        keys = _keys(table, accounts[KEYS], clients)
        set_up = {KEYS: keys, **set_up} if any(keys.values()) else set_up
    return Simulation(set_up, {name: seconds for name, seconds in found.items() if name not in once})


def described(table: SimulatedNetworkTable, simulation: Simulation) -> dict[str, Any]:
    """A simulation with what it rests on, for run.json."""
    own = {"name": table.name, **figures(table), "client_slowdown": table.client_slowdown}
    per_value = {key: getattr(table, key) for key in PER_VALUE}
    cryptography = {"encryption": table.encryption, **(per_value if table.encryption == "published" else {})}
    return {"network": own | cryptography, "set_up": simulation.set_up, "rounds": simulation.rounds}


def _seconds(table: SimulatedNetworkTable, account: Account) -> Seconds:
    """Of all the times that an exchange was played."""
    link, sealed, opened, added = figures(table), account["sealed_most"], account["opened_most"], account["added"]
    up, down, cryptography = account["up_most"], account["down_most"], 0.0
    if table.encryption == "published" and (sealed or opened):
        made, read = (_ciphertexts(table, values, account["played"]) for values in (sealed, opened))
        up = made * table.ciphertext_bytes + account["up_clear"]
        down = read * table.ciphertext_bytes + account["down_clear"]
        cryptography = (made * table.encrypt_s + read * table.decrypt_s) * table.ciphertext_values + added * table.add_s
    elif table.encryption == "as-run":
        # clients seal one after the other here, and side by side there: the busiest takes its share of the time of all
        cryptography = account["crypto_s"] * (sealed / added if added else 1.0)
    return {
        "compute": account["answer_s"] * table.client_slowdown,
        "encryption": cryptography,
        "latency": account["played"] * link["latency_s"] if account["up_most"] else 0.0,
        "transfer": up / link["up_bytes_per_s"] + down / link["down_bytes_per_s"],
        "server": account["server_s"],
    }


def _ciphertexts(table: SimulatedNetworkTable, values: float, played: float) -> float:
    """How many ciphertexts so many values take, which travelled in as many messages as an exchange was played."""
    if table.ciphertext_values == 1 or not played:
        return values
    return played * math.ceil(values / played / table.ciphertext_values)


def _keys(table: SimulatedNetworkTable, account: Account, clients: int) -> Seconds:
    """Of the mean client, who agrees with all of its partners in one round trip."""
    link = figures(table)
    up, down = account["up_bytes"] / clients, account["down_bytes"] / clients
    return dict.fromkeys(KINDS, 0.0) | {
        "encryption": account["crypto_s"] / clients,
        "latency": link["latency_s"] if up else 0.0,
        "transfer": up / link["up_bytes_per_s"] + down / link["down_bytes_per_s"],
    }

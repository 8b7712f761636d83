"""Encrypted sums of 120,000 values from 16 clients on one core, everything included, and what each part takes.

    python benchmarks/encrypted.py [--clients 16] [--values 120000] [--repeat 5] [--json]

One process hosts all clients, so that nothing is done in parallel: encode, encrypt, serialize, load, add, open, decode,
in the median of so many repetitions. The sum is compared with the plain channel's, bit for bit.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any, NamedTuple

import click
import numpy as np

from mpifed.comm.channels.base import Protection
from mpifed.comm.mpi import Solo
from mpifed.comm.rounds import Ranks, play
from mpifed.comm.states import ClientStates
from mpifed.core.exchange import Exchange, Field
from mpifed.core.round import Round
from mpifed.data.block import Block

TARGET_S = 1.5
PARTS = {"encrypt": "encode, encrypt, serialize", "add": "load, add, serialize the sum", "open": "load, open"}


class Shard(NamedTuple):
    """As much of a client's data as a round reads here: its number."""

    client: int
    y: np.ndarray


class Clock:
    """Seconds spent in methods of an object."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def watch(self, thing: Any, name: str, part: str) -> None:
        method = getattr(thing, name)

        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                self.seconds[part] += time.perf_counter() - start

        setattr(thing, name, timed)


def _exchange(values: int, clients: int) -> Exchange:
    answers = np.random.default_rng(0).standard_normal((clients, values)).astype(np.float32)
    return Exchange(
        "gradients",
        Field((values,), scale=2.0**-40),
        ask=lambda server, now: (),
        answer=lambda state, question, block, now: (state, answers[block.clients]),
        absorb=lambda server, total, now: total,
    )


def _ranks(clients: int, channel: str) -> Ranks:
    block = Block(tuple(Shard(client, np.zeros(1)) for client in range(clients)), "float32")  # type: ignore[arg-type]
    return Ranks(Solo(), [block], clients, protection=Protection(channel=channel))


def _play(ranks: Ranks, exchange: Exchange) -> tuple[float, Any]:
    states, start = ClientStates(ranks.blocks.first, lambda i: ()), time.perf_counter()
    total, _ = play([exchange], (), states, Round(0, 1, np.ones(ranks.clients, dtype=bool)), ranks)
    return time.perf_counter() - start, total


def measure(clients: int, values: int, repeat: int) -> dict[str, Any]:
    """Seconds of a sum, of its parts, and of starting up."""
    exchange = _exchange(values, clients)
    plain = _ranks(clients, "plain")
    plain.make_ready([exchange])
    expected = [_play(plain, exchange) for _ in range(repeat)]
    secret = _ranks(clients, "encrypted")
    secret.make_ready([exchange])
    start = time.perf_counter()
    secret.agree_on_keys()
    ready = time.perf_counter() - start
    clock = Clock()
    channel: Any = secret.channel  # of the class that its name says
    for name, part in PARTS.items():
        clock.watch(channel.scheme, name, part)
    totals, parts = [], []
    before = secret.up_bytes, secret.down_bytes  # of the keys
    cpu = time.process_time()
    for _ in range(repeat):
        clock.seconds.clear()
        seconds, total = _play(secret, exchange)
        assert np.array_equal(total, expected[0][1]), "the encrypted sum differs from the plain one"
        totals.append(seconds)
        rest = seconds - sum(clock.seconds.values())
        parts.append({**clock.seconds, "to integers, pack, check, decode": rest})
    cpu = (time.process_time() - cpu) / repeat
    return {
        "case": f"encrypted sum, {values} values of {clients} clients",
        "total_s": float(np.median(totals)),
        "cpu_s": cpu,
        "parts_s": {name: float(np.median([one[name] for one in parts])) for name in parts[0]},
        "plain_s": float(np.median([seconds for seconds, _ in expected])),
        "start_up_s": ready,
        "up_bytes": (secret.up_bytes - before[0]) // repeat,
        "down_bytes": (secret.down_bytes - before[1]) // repeat,
        "budget_bits": channel.scheme.budget,
        "target_s": TARGET_S,
    }


@click.command()
@click.option("--clients", default=16)
@click.option("--values", default=120_000)
@click.option("--repeat", default=5)
@click.option("--json", "as_json", is_flag=True)
def main(clients: int, values: int, repeat: int, as_json: bool) -> None:
    result = measure(clients, values, repeat)
    if as_json:
        print(json.dumps(result))
        return
    print(f"{result['case']}: {result['total_s']:.3f} s, {result['cpu_s']:.3f} of them on the core")
    print(f"  wanted: under {TARGET_S} s, of 120000 values of 16 clients")
    for name, seconds in result["parts_s"].items():
        print(f"  {seconds:8.3f} s  {name}")
    print(f"  plain: {result['plain_s']:.4f} s; start-up with self-test: {result['start_up_s']:.3f} s")
    print(f"  up {result['up_bytes'] / 1e6:.1f} MB, down {result['down_bytes'] / 1e6:.1f} MB")
    print(f"  {result['budget_bits']} bits of noise budget left")


if __name__ == "__main__":
    main()

"""The cases of bench.py: which job, how much of it, how often, which variants; and what a variant changes in a job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Case(NamedTuple):
    """How much of a case is run; what it is stands in its job file and in the hand-written loops."""

    clients: int
    rounds: int
    variants: tuple[str, ...] = ("hand", "exact")
    job: str = ""  # the job file; case[name].toml where it is left out
    changes: tuple[str, ...] = ()  # to the job
    floor: tuple[str, ...] = ()  # the hand-written loop of columns, without its rounds; of rows where left out
    loop: tuple[str, ...] = ()  # a hand-written loop for this case alone, without its rounds
    ranks: tuple[int, ...] = ()  # instead of those asked for
    data: str = ""  # instead of images split by rows or columns: "grid", "text", "clients", or "small"
    family: str = "rows"  # the cases that it is asked for with


def cells(data: str, penalty: float) -> Case:
    """4 x 4 cells of even and odd digits, or of texts; rule `damped`, and `line-search`."""
    variants = "products", "exact", "search", "encrypted"
    change = f"--set=model.l2={penalty}"
    return Case(
        16, 20, variants, "hyfdca.toml", (change,), loop=("products_of_cells.py",), ranks=(1,),
        data=data, family="cells",
    )  # fmt: skip


def columns(algorithm: str, batch: int, *more: str, ranks: tuple[int, ...] = ()) -> Case:
    """10 clients with some of the columns each."""
    variants, change = ("hand", "exact", "products", *more), f"--set=algorithm.batch_size={batch}"
    job, floor = f"{algorithm}.toml", (algorithm, str(batch))
    return Case(10, 200, variants, job, (change,), floor, ranks=ranks, family="columns")


def torch(network: str, rounds: int) -> Case:
    """8 clients, 5 local steps of batch 20 of a network of PyTorch."""
    change = f"--set=model.build=benchmarks.networks:{network}"
    loop = "handwritten_torch.py", network
    return Case(8, rounds, job="torch.toml", changes=(change,), loop=loop, family="networks")


STATES = '--set=algorithm={name="fedpdm",batch_size=5,rho=2.0,local_steps=2,start="own"}'


def sampled(*change: str) -> Case:
    """100 of 1,000 clients a round, and of 100,000."""
    return Case(1000, 40, ("few", "many"), "clients.toml", change, data="clients", family="clients")


NUMBERS = {
    "few": [],
    "many": [],
    "exact": [],  # on the algorithm's own grid, 2^-40
    "blocks": [
        "--set=aggregation.arithmetic=exact-blocks"
    ],  # the sum of a block is rounded, and not each client's answer
    "private": [  # clipped and noisy gradients
        "--set=privacy.delta=1e-5",
        "--set=privacy.clip=1.0",
        "--set=privacy.noise_multiplier=1.0",
    ],
    "masked": ['--set=aggregation.security="masked"', "--set=server.dedicated=false"],  # all pairs
    "encrypted": ['--set=aggregation.security="encrypted"', "--set=server.dedicated=false"],
    "search": ["--set=algorithm.rule=line-search"],
}
CASES = {
    "1": Case(
        10, 200, ("hand", "blocks", "hand-exact", "exact", "products")
    ),
    "1-recursive": Case(
        10, 200, ("exact", "products"),
        "case1.toml", ('--set=algorithm.variance_reduction="recursive"',), ranks=(1,),
    ),
    "1-fedsgd": Case(10, 200, ("hand", "exact")),
    "2": Case(100, 120, family="local"),
    "3": Case(1000, 12, ("hand", "blocks", "hand-exact", "exact")),
    "alg2": Case(10, 200, ("hand", "exact", "products"), "alg2.toml"),
    "alg2-groups": Case(10, 200, ("exact", "products"), "alg2-groups.toml", ranks=(1,)),
    "alg3-b1000": columns("alg3", 1000, "rows"),  # and the same arithmetic on data split by rows
    "alg4-b1000": columns("alg4", 1000, "rows"),
    "fedpdm": Case(
        1000, 150, ("hand", "exact", "private"), "fedpdm.toml",
        loop=("handwritten_states.py",), family="states",
    ),
    "torch-cnn": torch("cnn", 10),
    "torch-2nn": torch("mlp", 60),
    "channels": Case(
        10, 30, ("exact", "streams", "masked", "encrypted"), "case1.toml",
        family="channels",
    ),
    "hyfdca": cells("grid", 5e-4),
    "hyfdca-text": cells("text", 5e-6),
    "newcomer": Case(
        20, 1000, job="newcomer.toml", loop=("newcomer.py",), ranks=(1,), data="small", family="clients",
    ),
    "clients": sampled(),
    "clients-states": sampled(STATES),
    "alg3-b100": columns("alg3", 100, ranks=(2,)),
    "alg4-b100": columns("alg4", 100, ranks=(2,)),
}  # fmt: skip
BY_ROWS = {"alg3-b1000": "1", "alg4-b1000": "alg2"}
FAMILIES = tuple(dict.fromkeys(case.family for case in CASES.values()))
QUICK = ("2", "alg3-b100")  # the cases of --quick: that the loops by hand run


def chosen(names: Sequence[str]) -> list[str]:
    """The cases of these names, in the order of the table; a family's name, such as `clients`, is all its cases.

    Raises
    ------
    ValueError
        where a name is neither a case nor a family.
    """
    if unknown := [name for name in names if name not in CASES and name not in FAMILIES]:
        known = f"families are {', '.join(FAMILIES)}; cases {', '.join(CASES)}"
        raise ValueError(f"--cases {' '.join(unknown)}: no such case or family; {known}")
    single = {name for name in names if name not in FAMILIES}
    return [name for name, case in CASES.items() if case.family in names or name in single]


REPETITIONS = 3  # two of them tell what is slower


class Planned(NamedTuple):
    """One repetition of one variant."""

    case: str
    ranks: int
    rounds: int
    variant: str
    repetition: int


def planned(cases: Iterable[str], ranks: Sequence[int], quick: bool) -> list[Planned]:
    """Every repetition of every variant, what is compared one right after the other; quick: one, a fifth as long."""
    return [
        Planned(case, size, max(CASES[case].rounds // (5 if quick else 1), 1), variant, number)
        for case in cases
        for size in CASES[case].ranks or ranks
        for number in range(1 if quick else REPETITIONS)
        for variant in CASES[case].variants
    ]

"""Figures 3 and 4 of the HyFDCA paper: 36 settings of data, clients and how many of them take part.

The jobs are those of 4 x 4 clients, all present. `tuned.json` has by curve what Grey Relational Analysis chose, see
`jobs.hyfdca.selection`; of the rivals with half of the clients present, which holds for all fractions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

import mpifed
from jobs.hyfdca.optimum import optimum
from jobs.hyfdca.rows import read_rows
from jobs.reproduce import Curve, Plan, curves_of, of_panel, table
from mpifed.files.write import replace_text
from mpifed.job.job import read_table
from mpifed.job.schema import SimulatedNetwork
from mpifed.job.time_model import KINDS, PER_VALUE, simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
ROUNDS, SEEDS = (None, None), (1, 3)  # the jobs' 300
DATA = ("mnist", "newsgroups", "covtype", "a9a")  # a9a is not the paper's
GRIDS = {"4x4": 16, "2x2": 4, "8x8": 64}  # rows x columns: clients
FRACTIONS = (1.0, 0.5, 0.1)
RIVALS = ("FedAvg", "FedAvg / feature blocks", "HyFEM")
ANYBODY = ("HyFDCA", "HyFDCA, damped", *RIVALS)  # for whom some may be absent
TUNED: dict[str, dict[str, Any]] = json.loads((HERE / "tuned.json").read_text(encoding="utf-8"))
RELATIVE_GAP = 1e-12  # what certifies P*


def curves() -> Iterator[Curve]:
    """All of them, those of 4 x 4 clients first."""
    for grid, data, fraction in product(GRIDS, DATA, FRACTIONS):
        present = max(1, round(fraction * GRIDS[grid]))
        changes = [f'data.path="data/hyfdca-{data}-{grid}"', f"participation.clients_per_round={present}"]
        for curve in curves_of(
            HERE / f"{data}.toml", f"{data}-{grid}-{fraction:g}", changes, tuned(data, grid, fraction)
        ):
            if present == GRIDS[grid] or curve.label in ANYBODY:
                yield curve._replace(grid=grid)


def tuned(data: str, grid: str, fraction: float) -> dict[str, dict[str, Any]]:
    """What was chosen in a setting, by the label of a curve."""
    places = {label: f"{data}-{grid}-{0.5 if label in RIVALS else fraction:g}: {label}" for label in ANYBODY}
    return {label: TUNED[place] for label, place in places.items() if place in TUNED}


def results(plan: Plan, some: Sequence[Curve]) -> Iterator[tuple[str, Figure | pd.DataFrame]]:
    """The curves, the costs of a round, and figures of what was run."""
    yield "curves", table(plan, some, ["objective", "test_accuracy", "elapsed_s", "simulated_s"])
    optima = dict[str, float]()
    for panel in dict.fromkeys(curve.panel for curve in some):
        data = panel.partition("-")[0]
        if lines := of_panel(plan, some, panel):
            if data not in optima:
                job = read_table(next(next(iter(lines.values())).glob("*/job.toml")))
                kept = plan.out / f"optimum-{data}.json"
                optima[data] = best_of(Path(job["data"]["path"]), job["model"]["l2"], kept)
            columns = ["relative", "test_accuracy"], ["round", "simulated_s"]
            yield f"fig3-{panel}", mpifed.plot(lines, *columns, relative_to=optima[data])
    spent = costs(plan, some)
    yield "costs", spent
    for data in dict.fromkeys(spent["data"]):
        yield f"fig4-{data}", of_costs(data, spent[spent["data"] == data])


def best_of(shards: Path, l2: float, kept: Path) -> float:
    """P* of all training rows, found once and kept in a file."""
    if not kept.exists():
        rows = read_rows(shards)
        found = optimum(*next(rows.pieces(len(rows.y))), l2, RELATIVE_GAP)
        told = {"objective": found.objective, "dual": found.dual, "relative_gap": found.relative_gap}
        replace_text(kept, json.dumps(told) + "\n")
    return float(json.loads(kept.read_text(encoding="utf-8"))["objective"])


def costs(plan: Plan, some: Sequence[Curve]) -> pd.DataFrame:
    """Seconds of a round over the job's network by kind, with its times of encryption, and with those of Paillier."""
    rows = []
    for curve in some:
        for run in sorted(plan.folder(curve).glob("*/run.json")):
            told = json.loads(run.read_text(encoding="utf-8"))
            network: Mapping[str, Any] = read_table(run.with_name("job.toml"))["simulated_network"]
            paillier = {key: value for key, value in network.items() if key not in PER_VALUE}
            for times, keys in (("here", network), ("published", paillier)) if told["rounds"] else ():
                set_up, clients = set(told["simulated"]["set_up"]), GRIDS[curve.grid]
                parts = simulate(SimulatedNetwork(**keys), told["exchanges"], set_up, clients).rounds.values()
                seconds = {kind: sum(one[kind] for one in parts) / told["rounds"] for kind in KINDS}
                rows.append({"data": curve.panel.partition("-")[0], "curve": curve.name, "times": times, **seconds})
    return pd.DataFrame(rows, columns=["data", "curve", "times", *KINDS])


def of_costs(data: str, spent: pd.DataFrame) -> Figure:
    """Figure 4: the mean time of a round by kind, over all settings."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9.5, 3.8), layout="constrained")
    panels = picture.subplots(1, 2, sharey=True)
    shown = spent.assign(method=spent["curve"].str.partition(": ")[2])
    titles = {"here": "encryption as fast as here", "published": "encryption at published times"}
    for axes, (times, title) in zip(panels, titles.items(), strict=True):
        means = shown[shown["times"] == times].groupby("method")[list(KINDS)].mean()
        means.plot.barh(stacked=True, ax=axes, legend=times == "here", xlabel="seconds a round", ylabel="", title=title)
    picture.suptitle(data)
    return picture

"""Draw the figures of the documents from the CSV files beside them: `python docs/figures.py`."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

DOCS = Path(__file__).parent
STYLE: Any = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#dddddd",
    "axes.axisbelow": True, "svg.hashsalt": "mpifed", "svg.fonttype": "none",
}  # fmt: skip
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")  # Okabe and Ito's, apart for the colour-blind too


def table(name: str) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with open(DOCS / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def save(name: str) -> None:
    """Write the figure without the date, so that the same numbers give the same file."""
    plt.savefig(DOCS / name, bbox_inches="tight", metadata={"Date": None})
    plt.close()


def ssca() -> None:
    """Training loss by rounds, a panel for each kind of method, a line for each batch size."""
    rows = table("reproductions/ssca-loss.csv")
    panels: dict[str, Sequence[str]] = {
        "rows": ("Algorithm 1: rows", "Algorithm 2: rows, F ≤ U"),
        "columns": ("Algorithm 3: columns", "Algorithm 4: columns, F ≤ U"),
        "SGD": ("FedSGD", "vertical SGD", "FedAvg, 2 steps", "momentum SGD"),
    }
    _, axes = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True)
    for axis, (title, names) in zip(axes, panels.items(), strict=True):
        for (name, batch), lines in groupby(rows, key=lambda row: (row["algorithm"], int(row["batch"]))):
            if name not in names:
                continue
            points = list(lines)
            rounds, loss, spread = (
                np.array([float(row[key]) for row in points]) for key in ("round", "loss", "deviation")
            )
            batches = sorted({int(row["batch"]) for row in rows if row["algorithm"] in names})
            color = COLORS[batches.index(batch)]
            style = ("-", "--", ":", "-.")[names.index(name)]
            axis.fill_between(rounds, loss - spread, loss + spread, color=color, alpha=0.12, linewidth=0)
            axis.plot(rounds, loss, style, color=color, label=f"{name.replace(': ' + title, '')}, batch {batch:,}")
        axis.axhline(0.13, color="black", linewidth=0.8)
        axis.set(xscale="log", yscale="log", xlabel="round", title=title)
        axis.legend(fontsize=6.5, frameon=False)
    axes[0].set_ylabel("training loss")
    axes[0].annotate("U = 0.13", (10, 0.135), fontsize=7)
    save("reproductions/ssca.svg")


def fedpdm() -> None:
    """Test accuracy by epsilon."""
    rows = table("reproductions/fedpdm-accuracy.csv")
    order = ["inf", "30", "20", "10", "7"]
    _, axis = plt.subplots(figsize=(6, 3.4))
    for color, (method, lines) in zip((*COLORS, "#000000"), groupby(rows, key=lambda row: row["method"]), strict=False):
        points = [(order.index(row["epsilon"]), float(row["accuracy"])) for row in lines]
        axis.plot(*zip(*points, strict=True), "o-" if len(points) > 2 else "s", color=color, label=method)
    axis.set(ylabel="test accuracy, %", xlabel="epsilon of the worst client")
    axis.set_xticks(range(len(order)), ["no noise", *order[1:]])
    axis.legend(fontsize=7, frameon=False)
    save("reproductions/fedpdm.svg")


SPLITS = {"iid": ("IID", "-"), "shards": ("two shards", "--")}


def mcmahan() -> None:
    """The best test accuracy so far by rounds, a panel for each model; crosses are the rounds of the paper."""
    rows = table("reproductions/mcmahan-accuracy.csv")
    targets = {"2nn": 0.97, "cnn": 0.99}
    _, axes = plt.subplots(1, 2, figsize=(9, 3.6))
    for axis, (model, target) in zip(axes, targets.items(), strict=True):
        curves = groupby((row for row in rows if row["job"].startswith(model)), key=lambda row: row["job"])
        colors = dict[str, str]()  # by local epochs and batch
        for name, lines in curves:
            points = list(lines)
            rounds, accuracy = (np.array([float(row[key]) for row in points]) for key in ("round", "accuracy"))
            _, epochs, batch, split = name.split("-")
            color = colors.setdefault(epochs + batch, COLORS[len(colors)])
            label = f"E = {epochs[1:]}, B = {batch[1:].replace('inf', 'all')}, {SPLITS[split][0]}"
            best = 100 * np.maximum.accumulate(accuracy)
            axis.plot(rounds[1:], best[1:], SPLITS[split][1], color=color, label=label)
            axis.plot(float(points[0]["paper"]), 100 * target, "x", color=color, markersize=8)
        axis.axhline(100 * target, color="black", linewidth=0.8, linestyle=":")
        axis.set(xscale="log", ylim=(80, 100), xlabel="round", title=f"{model.upper()}, target {100 * target:.0f} %")
        axis.legend(fontsize=7, loc="lower right")
    axes[0].set_ylabel("best test accuracy so far, %")
    save("reproductions/mcmahan.svg")


CASES = {  # of benchmarks/bench.py, in the words of the page: those with a loop by hand
    "1": "10 clients, batch 100, SSCA",
    "1-fedsgd": "10 clients, batch 100, FedSGD",
    "2": "5 of 100 clients, FedAvg, an epoch of batch 30",
    "3": "1,000 clients of 60 rows, batch 10, FedSGD",
    "alg3-b1000": "10 clients by columns, batch 1000, SSCA",
    "fedpdm": "50 of 1,000 clients with states, FedPDM, 5 steps",
    "torch-cnn": "8 clients, a CNN of PyTorch, FedAvg, 5 steps",
    "torch-2nn": "8 clients, a 2NN of PyTorch, FedAvg, 5 steps",
}
SUMS = {"exact": "exact sums", "blocks": "exact sums of blocks"}


METHODS = ("HyFDCA", "FedAvg", "HyFEM", "bundle")
KINDS = ("compute", "encryption", "latency", "transfer", "server")


def hyfdca() -> None:
    """Figure 3: relative loss by rounds, a panel for each data set; Figure 4: mean seconds of a round by kind."""
    rows = table("reproductions/hyfdca.csv")
    panels = list(dict.fromkeys(row["data"] for row in rows))
    _, axes = plt.subplots(1, len(panels), figsize=(11, 3), layout="constrained")
    for axis, data in zip(axes, panels, strict=True):
        for color, method in zip(COLORS, METHODS, strict=False):
            points = [row for row in rows if (row["data"], row["method"]) == (data, method)]
            rounds, loss = ([float(row[key]) for row in points] for key in ("round", "relative"))
            axis.plot(rounds, loss, color=color, label=method)
        axis.set(yscale="log", xlabel="round", title=data)
    axes[0].set_ylabel("(P - P*) / P*")
    axes[-1].legend(fontsize=7, frameon=False, loc="center right")
    save("reproductions/hyfdca.svg")
    rows = table("reproductions/hyfdca-costs.csv")
    _, axes = plt.subplots(1, 2, figsize=(9, 2.4), sharey=True, layout="constrained")
    titles = {"here": "encryption as measured here (BFV)", "published": "encryption at published times (Paillier)"}
    for axis, (times, title) in zip(axes, titles.items(), strict=True):
        means = {
            method: [
                np.mean([float(row[kind]) for row in rows if (row["method"], row["times"]) == (method, times)])
                for kind in KINDS
            ]
            for method in METHODS[:3]
        }
        left = np.zeros(3)
        for color, kind, seconds in zip(COLORS, KINDS, zip(*means.values(), strict=True), strict=True):
            axis.barh(METHODS[:3], seconds, left=left, color=color, label=kind)
            left += seconds
        for place, total in enumerate(left):
            axis.text(total, place, f" {total:.3g} s", va="center", fontsize=7)
        axis.set(xlabel="seconds a round", title=title, xlim=(0, 1.15 * left.max()))
        axis.grid(axis="y", visible=False)
    axes[0].invert_yaxis()
    axes[0].legend(fontsize=7, frameon=False)
    save("reproductions/hyfdca-costs.svg")


def speed() -> None:
    """Time by hand / time by mpifed, on one rank and on two."""
    rows = [row for row in table("benchmarks/results.csv") if row["floor"] == "hand" and row["variant"] in SUMS]
    cases = [case for case in CASES if any(row["case"] == case for row in rows)]
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), sharey=True)
    for axis, ranks in zip(axes, (1, 2), strict=True):
        for k, (variant, label) in enumerate(SUMS.items()):
            found = [
                row for row in rows if (row["variant"], row["ranks"]) == (variant, str(ranks)) and row["case"] in cases
            ]
            places = np.array([cases.index(row["case"]) for row in found])
            shares = [float(row["ratio"]) for row in found]
            axis.barh(places + 0.36 * (k - 0.5), shares, 0.34, color=COLORS[k], label=label)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set(xlabel="time by hand / time by mpifed", title="1 rank" if ranks == 1 else f"{ranks} ranks")
        axis.grid(axis="y", visible=False)
    axes[0].set_yticks(range(len(cases)), [CASES[case] for case in cases])
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=3, frameon=False, fontsize=8,
                  bbox_to_anchor=(0.5, -0.06))  # fmt: skip
    save("benchmarks/speed.svg")


def rivals() -> None:
    """Times of a round beside other software, by case, logarithmic; the number is the ratio to mpifed."""
    groups = {case: list(rows) for case, rows in groupby(table("benchmarks/rivals.csv"), key=lambda row: row["case"])}
    _, axes = plt.subplots(1, len(groups), figsize=(9.5, 2.1), sharey=True, layout="constrained")
    for axis, (case, rows) in zip(axes, groups.items(), strict=True):
        times = [float(row["ms"]) for row in rows]
        axis.barh([row["variant"] for row in rows], times, color=[COLORS[row["variant"] != "mpifed"] for row in rows])
        for place, row in enumerate(rows):
            axis.text(times[place] * 1.15, place, "" if row["variant"] == "mpifed" else f"{row['ratio']}x", va="center")
        axis.set(xscale="log", xlim=(min(times) / 3, max(times) * 8), xlabel="ms a round")
        axis.set_title(case.replace(": ", ":\n"), fontsize=9, loc="left")
        axis.grid(axis="y", visible=False)
    axes[0].invert_yaxis()
    save("benchmarks/rivals.svg")


if __name__ == "__main__":
    with plt.rc_context(STYLE):
        ssca()
        fedpdm()
        mcmahan()
        hyfdca()
        speed()
        rivals()

"""What `mpifed data` and `mpifed show` print of a data folder."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mpifed.core.record import of_vectors
from mpifed.core.text import shown
from mpifed.data.store import Federation

MOST_SHOWN = 20  # clients whose counts of labels are printed, and classes
_NAME = 24  # characters of an identifier or the name of a class


def summary(federation: Federation) -> str:
    """A few lines on the data of a folder."""
    counts, widths, nbytes, about = federation.counts, federation.widths, federation.nbytes(), federation.provenance
    natural, tests = federation.client_names(), federation.test_counts
    clients = _names(natural or range(federation.clients))
    classes = _names(about.get("classes") or range(federation.classes or federation.targets))
    own = f", and {tests.sum()} of {(tests > 0).sum()} clients' own" if tests.any() else ""
    few = clients if len(clients) < 4 else [*clients[:2], "...", clients[-1]]
    lines: dict[str, str] = {
        "rows": f"{federation.samples} to train on, {federation.test_samples} to test with{own}",
        "features": f"{federation.features}{', sparse' if federation.sparse else ''}",
        **_labels(federation, classes),
        "scale": _scale(federation),
        "clients": f"{federation.clients}, split by {federation.split}"
        + (f", natural: {', '.join(few)}" if natural else ""),
        "shards": f"{counts.min()} to {counts.max()} rows (median {np.median(counts):g}), {widths.min()} to "
        f"{widths.max()} features",
        "bytes": f"{nbytes.sum()} in shards, the largest {nbytes.max()}",
        "folder": "none: in memory" if federation.path is None else f"{federation.path}",
        **{name: str(about[name]) for name in ("small", "tests", "index") if name in about},
    }
    if missing := about.get("missing_cells"):
        lines["missing"] = f"{missing} cells that no client holds, which count as zero"
    # a folder of strangers may say anything: nothing of it is obeyed by a terminal, or begins a line of its own
    text = [f"{name:9}{shown(value, len(value))}" for name, value in lines.items()]
    if federation.clients <= MOST_SHOWN and 0 < federation.classes <= MOST_SHOWN // 2:
        bounds, groups = federation.bounds["rows"].tolist(), federation.holds[:, 0].tolist()
        labels = (federation.labels("", *bounds[group : group + 2]) for group in groups)
        rows = [np.bincount(y, minlength=federation.classes).tolist() for y in labels]
        text += ["", *_label_table(clients, rows, classes)]
    return "\n".join(text)


def _names(names: Iterable[object]) -> list[str]:
    return [shown(str(name), _NAME) for name in names]


def _scale(federation: Federation) -> str:
    """The scaling that was asked for, or came by itself."""
    if said := federation.provenance.get("scale"):
        return str(said)
    options = federation.provenance.get("options")
    given = options.get("scale") if isinstance(options, dict) else None
    return str(given or ("unit" if federation.scaling.scale.ndim or federation.scaling.scale != 1 else "none"))


def _labels(federation: Federation, names: list[str]) -> dict[str, str]:
    """What labels are, and in how many training rows each class, or each of several labels of a row, is."""
    if federation.task == "regression":
        return {"classes": "none (real targets)"}
    line, several = str(len(names)), federation.task == "multilabel"
    if len(names) <= MOST_SHOWN:
        _, first = np.unique(federation.members("rows"), return_index=True)  # of rows that several clients hold
        y = federation.labels()[first]
        counts = of_vectors(y).sum(axis=0).astype(int) if several else np.bincount(y, minlength=len(names))
        line += f": {', '.join(f'{name} ({count})' for name, count in zip(names, counts, strict=True))}"
    return {"labels" if several else "classes": line}


def _label_table(clients: list[str], counts: list[list[int]], classes: list[str]) -> list[str]:
    """A line for each client: its rows of each class."""
    width = max(4, min(max(map(len, classes)), 80 // len(classes)), *(len(str(most)) for most in map(max, counts))) + 1
    margin = max(8, *(len(client) + 1 for client in clients))

    def line(name: str, cells: list[str]) -> str:
        return f"{name:{margin}}" + "".join(f"{cell[: width - 1]:>{width}}" for cell in cells)

    rows = (line(client, [str(count or ".") for count in row]) for client, row in zip(clients, counts, strict=True))
    return [line("client", classes), *rows]

"""What `mpifed data` and `mpifed show` print of a data folder."""

from __future__ import annotations

from statistics import median

import numpy as np

from mpifed.core.text import shown
from mpifed.data.sources.dataset import listed
from mpifed.data.store import Federation

MOST_SHOWN = 20  # clients whose counts of labels are printed, and classes
_NAME = 24  # characters of an identifier or the name of a class


def summary(federation: Federation) -> str:
    """A few lines on the data of a folder."""
    counts, widths, nbytes = federation.counts, federation.widths, federation.nbytes()
    tests = federation.test_counts
    own = f", and {tests.sum()} of {(tests > 0).sum()} clients' own" if tests.any() else ""
    lines = {
        "rows": f"{federation.samples} to train on, {federation.test_samples} to test with{own}",
        "features": f"{federation.features}{', sparse' if federation.sparse else ''}",
        "classes": _of_classes(federation),
        "clients": f"{federation.clients}, split by {federation.split}{_of_whom(federation)}",
        "shards": f"{counts.min()} to {counts.max()} rows (median {median(counts.tolist()):g}), {widths.min()} to "
        f"{widths.max()} features",
        "bytes": f"{nbytes.sum()} in shards, the largest {nbytes.max()}",
        "folder": f"{federation.path}",
    }
    lines |= {
        name: str(federation.provenance[name])
        for name in ("small", "tests", "index", "scale", "origin")
        if name in federation.provenance
    }
    missing = federation.provenance.get("missing_cells")
    if missing:
        lines["missing"] = f"{missing} cells that no client holds, which count as zero"
    # a folder of strangers may say anything: nothing of it is obeyed by a terminal, or begins a line of its own
    text = [f"{name:9}{shown(value, len(value))}" for name, value in lines.items()]
    if federation.clients <= MOST_SHOWN and 0 < federation.classes <= MOST_SHOWN // 2:
        bounds, groups = federation.bounds["rows"].tolist(), federation.holds[:, 0].tolist()
        labels = (federation.labels("", *bounds[group : group + 2]) for group in groups)
        counts = [np.bincount(y, minlength=federation.classes).tolist() for y in labels]
        text += ["", *_label_table(_clients(federation), counts, [shown(name) for name in _classes(federation)])]
    return "\n".join(text)


def _of_classes(federation: Federation) -> str:
    """How many classes there are, and what they are called where they have names."""
    if not federation.classes:
        return "none (real targets)"
    if not federation.provenance.get("named"):
        return f"{federation.classes}"
    return f"{federation.classes}: {listed((_cut(name) for name in _classes(federation)), MOST_SHOWN // 2)}"


def _classes(federation: Federation) -> list[str]:
    return [str(name) for name in federation.provenance.get("classes") or range(federation.classes)]


def _of_whom(federation: Federation) -> str:
    """The first and last identifiers of natural clients."""
    natural = federation.natural()
    if natural is None:
        return ""
    ids = natural[0]
    return f", natural: {', '.join(map(_cut, ids if len(ids) < 4 else [ids[0], ids[1], '...', ids[-1]]))}"


def _clients(federation: Federation) -> list[str]:
    """What each client is called: the identifier of natural clients, else its number."""
    natural = federation.natural()
    return list(map(_cut, natural[0] if natural else map(str, range(federation.clients))))


def _cut(name: str) -> str:
    return shown(name, _NAME)


def _label_table(clients: list[str], counts: list[list[int]], classes: list[str]) -> list[str]:
    """A line for each client: its rows of each class."""
    width = max(4, min(max(map(len, classes)), 80 // len(classes)), *(len(str(most)) for most in map(max, counts))) + 1
    margin = max(8, *(len(client) + 1 for client in clients))

    def line(name: str, cells: list[str]) -> str:
        return f"{name:{margin}}" + "".join(f"{cell[: width - 1]:>{width}}" for cell in cells)

    rows = (line(client, [str(count or ".") for count in row]) for client, row in zip(clients, counts, strict=True))
    return [line("client", classes), *rows]

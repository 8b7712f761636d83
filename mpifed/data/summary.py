"""What `mpifed data` and `mpifed show` print of a data folder."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mpifed.data.block import of_vectors
from mpifed.data.store import Federation
from mpifed.text import shown

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
    options = about.get("options")
    lines: dict[str, object] = {
        "rows": f"{federation.samples} to train on, {federation.test_samples} to test with{own}",
        "features": f"{federation.features}{', sparse' if federation.sparse else ''}",
        **_labels(federation, classes),
        "scale": about.get("scale") or (options.get("scale") if isinstance(options, dict) else None) or "none",
        "clients": f"{federation.clients}, split by {federation.split}"
        + (f", natural: {', '.join(few)}" if natural else ""),
        "shards": f"{counts.min()} to {counts.max()} rows (median {np.median(counts):g}), {widths.min()} to "
        f"{widths.max()} features",
        "bytes": f"{nbytes.sum()} in shards, the largest {nbytes.max()}",
        "folder": federation.path or "none: in memory",
        **{name: about[name] for name in ("names", "small", "tests", "index") if name in about},
    }
    if missing := about.get("missing_cells"):
        lines["missing"] = f"{missing} cells that no client holds, which count as zero"
    # a folder of strangers may say anything: nothing of it is obeyed by a terminal, or begins a line of its own
    text = [f"{name:9}{shown(str(value), len(str(value)))}" for name, value in lines.items()]
    if federation.clients <= MOST_SHOWN and 0 < federation.classes <= MOST_SHOWN // 2:
        bounds, width = federation.bounds["rows"].tolist(), max(map(len, [*classes, "rows"])) + 1
        text += ["", f"{'client':{_NAME}}" + "".join(f"{name:>{width}}" for name in classes)]
        for client, group in zip(clients, federation.holds[:, 0].tolist(), strict=True):
            rows = np.bincount(federation.labels("", *bounds[group : group + 2]), minlength=len(classes))
            text.append(f"{client:{_NAME}}" + "".join(f"{count or '.':>{width}}" for count in rows.tolist()))
    return "\n".join(text)


def _names(names: Iterable[object]) -> list[str]:
    return [shown(str(name), _NAME) for name in names]


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

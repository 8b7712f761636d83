"""What `mpifed data` and `mpifed show` print of a data folder."""

from __future__ import annotations

import numpy as np

from mpifed.data.store import Federation
from mpifed.text import shown

MOST_SHOWN = 20  # classes that are named
_NAME = 24  # characters of the name of a class


def summary(federation: Federation) -> str:
    """A few lines on the data of a folder."""
    counts, widths, about = federation.counts, federation.widths, federation.provenance
    tests, names = federation.test_counts, federation.client_names()
    own = f", and {tests.sum()} of {(tests > 0).sum()} clients' own" if tests.any() else ""
    few = names if len(names) < 4 else (*names[:2], "...", names[-1])
    options = about.get("options")
    lines: dict[str, object] = {
        "rows": f"{federation.samples} to train on, {federation.test_samples} to test with{own}",
        "features": f"{federation.features}{', sparse' if federation.sparse else ''}",
        "labels" if federation.task == "multilabel" else "classes": _labels(federation),
        "scale": about.get("scale") or (options.get("scale") if isinstance(options, dict) else None) or "none",
        "clients": f"{federation.clients}, split by {federation.split}{', natural: ' * bool(few)}{', '.join(few)}",
        "shards": f"{counts.min()} to {counts.max()} rows (median {np.median(counts):g}), {widths.min()} to "
        f"{widths.max()} features",
        "folder": federation.path or "none: in memory",
        **{name: about[name] for name in ("names", "tests", "index") if name in about},
    }
    # a folder of strangers may say anything: nothing of it is obeyed by a terminal, or begins a line of its own
    return "\n".join(f"{name:9}{shown(str(value), len(str(value)))}" for name, value in lines.items())


def _labels(federation: Federation) -> str:
    """What labels are, and what they are called."""
    if federation.task == "regression":
        return "none (real targets)"
    number = federation.classes or federation.targets
    if number > MOST_SHOWN:
        return str(number)
    names = federation.provenance.get("classes") or range(number)
    return f"{number}: {', '.join(shown(str(name), _NAME) for name in names)}"

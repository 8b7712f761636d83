"""What runs minimize: whether their losses and objectives are numbers of one function, and can be ranked."""

from __future__ import annotations

from mpifed.core.tables import ReadOnlyTable
from mpifed.results.text import toml_text

_CROSS_ENTROPY = ("softmax", "mlp", "torch")  # models of this loss, unless their key `loss` says another
_PENALTIES = ("l2", "nonconvex_penalty", "penalize_bias")


def objective_of(job: ReadOnlyTable) -> list[str]:
    """What a job minimizes, part by part: its loss, then [minimize], penalties and the regularizer, where it has them.

    Keys that say of what kind a model is, such as the units of a network, are no part of it. Of a model of the user's
    own it is not known which keys are, so all are.
    """
    model = job.get("model", {})
    name = model.get("name", "")
    loss = model.get("loss", "cross-entropy") if name in _CROSS_ENTROPY else name
    keys = [key for key in model if key != "name"] if ":" in name else _PENALTIES
    penalized = ":" in name or any(model.get(key) for key in _PENALTIES[:2])
    tables = {
        "[minimize]": job.get("minimize") if job.get("minimize") != {"name": "loss"} else None,
        "[regularizer]": job.get("regularizer"),
        **{f"[model] {key}": model.get(key) for key in keys if penalized},
    }
    return [f"loss {toml_text(loss)}", *(f"{key} = {toml_text(value)}" for key, value in tables.items() if value)]

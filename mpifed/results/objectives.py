"""What runs minimize: whether their losses and objectives are numbers of one function, and can be ranked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mpifed.core.errors import UsageError
from mpifed.core.tables import ReadOnlyTable
from mpifed.results.text import toml_text

OF_OBJECTIVE = ("objective", "lower_bound", "dual", "duality_gap")  # columns in units of what is minimized
OF_LOSS = ("train_loss", "test_loss")
_LOSS = "loss of the model"
_CROSS_ENTROPY = ("softmax", "mlp", "torch")  # models of this loss, unless their key `loss` says another
_PENALTIES = ("l2", "nonconvex_penalty", "penalize_bias")


def objective_of(job: ReadOnlyTable) -> dict[str, str]:
    """What a job minimizes, as text by part: its loss, [minimize], penalties and the regularizer.

    Keys that say of what kind a model is, such as the units of a network, are no part of it. Of a model of the user's
    own it is not known which keys are, so all are.
    """
    model = job.get("model", {})
    name = model.get("name", "")
    loss = model.get("loss", "cross-entropy") if name in _CROSS_ENTROPY else name
    keys = [key for key in model if key != "name"] if ":" in name else _PENALTIES
    parts = {
        _LOSS: toml_text(loss),
        "[minimize]": toml_text(job.get("minimize", {"name": "loss"})),
        "[regularizer]": toml_text(job.get("regularizer") or {}),
        **{f"[model] {key}": toml_text(model[key]) for key in keys if model.get(key)},
    }
    if not any(model.get(key) for key in ("l2", "nonconvex_penalty")):
        parts.pop("[model] penalize_bias", None)  # of nothing
    return parts


def check_objectives(named: str, objectives: Mapping[str, Mapping[str, str]], columns: Iterable[str]) -> None:
    """UsageError where a column is in units of the objective or the loss, and these differ between the runs.

    Parameters
    ----------
    named : the folders, as messages name them
    objectives : of each run, by its name; empty where a run has not begun
    columns : those by which runs are to be ranked
    """
    if why := incomparable(objectives, list(columns)):
        raise UsageError(f"{named}: {why}; choose by another column, as --by test_accuracy")


def incomparable(objectives: Mapping[str, Mapping[str, str]], columns: Sequence[str]) -> str:
    """Why one of the columns ranks nothing; empty where all can be ranked by."""
    begun = {name: parts for name, parts in objectives.items() if parts}
    every = list(dict.fromkeys(part for parts in begun.values() for part in parts))
    differing = [part for part in every if len({parts.get(part) for parts in begun.values()}) > 1]
    for columns_of, what, parts in ((OF_OBJECTIVE, "objectives", differing), (OF_LOSS, "losses", [_LOSS])):
        compared = [name for name in columns if name in columns_of]
        said = [part for part in parts if part in differing]
        if compared and said:
            examples = {tuple(parts.get(part, "0") for part in said): name for name, parts in reversed(begun.items())}
            listed = "; ".join(
                f"{name} has {', '.join(f'{part} = {value}' for part, value in zip(said, values, strict=True))}"
                for values, name in list(reversed(examples.items()))[:3]
            )
            more = f"; and {len(examples) - 3} more" if len(examples) > 3 else ""
            return f"{what} differ ({listed}{more}), so that {compared[0]} ranks nothing"
    return ""

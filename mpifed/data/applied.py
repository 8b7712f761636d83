"""What a run keeps of its data beside its model: how samples become inputs, and what its classes are called."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike
from pydantic_core import from_json

from mpifed.core.errors import DataError
from mpifed.data.block import Piece
from mpifed.data.recipe import Encoding
from mpifed.data.scaling import unit_rows
from mpifed.data.store import Federation, ProvenanceJson, ScalingJson, Step, contradictions
from mpifed.files.expected import Count, Positive
from mpifed.files.json_file import as_written
from mpifed.files.reading import reading
from mpifed.files.schemas import checked, conforming

APPLIED = "data.json"
_REMEDY = "put it back as the run wrote it; --resume writes it again"


@dataclass(frozen=True)
class Applied:
    """The content of `data.json`."""

    features: Positive
    classes: Count  # 0 for real targets, and for several labels of a row
    targets: Positive  # of a row
    shape: tuple[Positive, ...] | None  # of a sample; None: vectors
    names: tuple[str, ...] | None  # [features]
    recipe: tuple[Encoding, ...] | None  # how they are made of the columns of a table, where they are
    are_bytes: bool  # whether samples are
    steps: list[Step]  # by which they become inputs; the last one is a scaling
    labels: list[str]  # what classes stand for
    named: bool  # whether these were texts
    columns: tuple[str, ...] = ()  # names of the columns of labels, where these have some

    def __post_init__(self) -> None:
        """ValueError where its parts do not fit each other: of too few factors, more would be read than there are."""
        factors = [len(factor) for step in self.steps if not isinstance(step, str) for factor in vars(step).values()]
        wrong = contradictions(self.features, self.shape, self.names, self.recipe)
        ends_in_scaling = bool(self.steps) and self.steps[-1] != "unit-rows"
        kinds = len(self.labels) in (0, self.classes or self.targets)
        if any(wrong.values()) or not (ends_in_scaling and kinds and {*factors} <= {1, self.features}):
            raise ValueError(f"names, recipe, shape, steps or labels do not fit {self.features} features")

    def inputs(self, rows: Piece, dtype: DTypeLike) -> Piece:
        """[s, features] inputs of a model, of samples as they are stored; DataError where they are not finite."""
        with np.errstate(all="ignore"):
            inputs = self._inputs(rows, dtype)
        if not np.isfinite(inputs if isinstance(inputs, np.ndarray) else inputs.data).all():
            raise DataError(f"{APPLIED}: samples, scaled by its factors, are no finite numbers; {_REMEDY}")
        return inputs

    def _inputs(self, rows: Piece, dtype: DTypeLike) -> Piece:
        for step, then in pairwise(self.steps):
            if isinstance(step, ScalingJson):  # in the dtypes of `mpifed.data.prepare`
                rows = step.scaling().apply(rows, "f8" if then == "unit-rows" else "f4")
            else:
                rows = unit_rows(rows)
        last = self.steps[-1]
        assert isinstance(last, ScalingJson)
        return last.scaling().apply(rows, dtype)


def applied(data: Federation) -> Applied:
    """What to keep of the data."""
    about = conforming(ProvenanceJson, data.provenance)
    return Applied(
        features=data.features,
        classes=data.classes,
        targets=data.targets,
        shape=data.shape,
        names=data.names(),
        recipe=tuple(data.about.recipe) if data.about.recipe else None,
        are_bytes=about.inputs.are_bytes,
        steps=[*about.inputs.before, ScalingJson.of(data.scaling)],
        labels=about.classes,
        named=about.named,
        columns=tuple(about.labels),
    )


def read_applied(path: Path) -> Applied:
    """What a run has kept; DataError where the file cannot be read, or was changed."""
    if path.is_symlink():
        raise DataError(f"{path}: is a link, and no file that a run has written; {_REMEDY}")
    with reading(path, _REMEDY, OSError, ValueError):
        table = from_json(as_written(path), allow_inf_nan=False)
    return checked(path, Applied, table, _REMEDY)

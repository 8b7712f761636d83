"""`mpifed data`: converts a source to the files of a federation."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import datetime, timezone
from importlib.metadata import version

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.core.record import Flags
from mpifed.core.tables import Table
from mpifed.data.block import of_vectors
from mpifed.data.holding_out import hold_out, own_tests, with_owners_tests
from mpifed.data.labels import encode
from mpifed.data.natural import canonical_order
from mpifed.data.options import Options as Options
from mpifed.data.partition import Partition, by_grid, check_partition
from mpifed.data.partitioners import by_kind
from mpifed.data.recipe import Recipe, fit_recipe
from mpifed.data.samples import Samples, pieces, stack_rows, stored_samples
from mpifed.data.scaling import IDENTITY, Scaling, fit, unit_rows
from mpifed.data.store import Federation, Inputs, ScalingJson, Step, make_federation
from mpifed.files.write import sha256
from mpifed.text import listed


def prepare(options: Options) -> Federation:
    """Make a data folder.

    Parameters
    ----------
    options : of `mpifed data`

    Returns
    -------
    The federation, written or in memory.

    Raises
    ------
    UsageError : when the options do not fit the data, or the folder is not empty.
    DataError : when the source is missing or damaged.
    """
    out, source = options.out, options.source
    if out and not options.force and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out}: not an empty folder; give another, or --force to replace the data")
    data = _in_client_order(stored_samples(options.name, source.read(options.seed)))
    if options.test_fraction is not None:
        data = hold_out(data, options.test_fraction, options.seed)
    remarks, recipe = _remarks(options, data), Recipe()
    given_classes = bool(data.columns and data.columns.public.classes)
    if options.split in ("columns", "grid"):
        data, recipe = _encode(data, np.ones(len(data.y), bool))
    labels, meaning, classes = encode(data, options.labels, given_classes)
    data, ids = replace(data, y=labels[0], test=data.test and replace(data.test, y=labels[-1])), list[str]()
    if options.natural and data.partition is None:
        if options.test_fraction is None and options.client_test_fraction is None:
            data = with_owners_tests(data)
        present, owner = np.unique(data.ids, return_inverse=True)
        ids, rows = [data.owners[at] for at in present.tolist()], by_kind(owner, len(present))
        holds = np.stack([np.arange(len(rows)), np.zeros(len(rows), int)], axis=1)
        partition = Partition("rows", rows, [np.arange(data.features)], holds)
    elif options.natural and data.partition is not None:
        partition = data.partition
        check_partition(partition, *data.X.shape)
    else:
        clients, split = options.clients or 0, options.split or "rows"
        shape = options.groups or ((1, clients) if split == "columns" else (clients, 1))
        partition = by_grid(split, data.y, data.features, shape, options.partition, options.skew, options.seed)
    tests = own_tests(partition, data.y, data.own_tests, options.client_test_fraction, options.seed)
    trained = np.ones(len(data.y), dtype=np.bool_) if tests is None else ~tests
    if data.columns is not None:  # split by rows
        data, recipe = _encode(data, trained)
        partition = partition._replace(columns=[np.arange(data.features)])
    is_bytes, kinds, top = not data.sparse and data.X.dtype == np.uint8, options.scalings, data.top
    if not kinds and is_bytes:  # raw pixels diverge
        kinds, remarks["scale"] = ["unit"], f"bytes divided by {top:g}; --scale none leaves them as they are"
    elif not kinds and recipe.columns:
        kinds, remarks["scale"] = ["standard"], "standard, which --scale none leaves out"
    data, scaling, before = _scale(data, kinds, trained)
    names = [path.name for path in data.files]
    provenance: Table = {
        "source": options.name,
        "options": json.loads(json.dumps(asdict(options), default=str)),
        "files": {
            f"{path.parent.name}/{path.name}" if names.count(path.name) > 1 else path.name: sha256(path)
            for path in data.files
        },
        "classes": list(meaning),
        "named": data.classes is not None and not data.numbered,
        "labels": list(data.labels),
        "versions": {name: version(name) for name in ("mpifed", "numpy", "scipy", "h5py")},
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "fitted": _fitted(options, data, recipe, kinds, top, ["classes"] * (bool(meaning) > given_classes)),
        "given": [*recipe.given, *["classes"] * given_classes],
        "inputs": asdict(Inputs(is_bytes, before)),
        **remarks,
    }
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    test, targets = data.test, of_vectors(data.y[trained])
    size = 0.0 if meaning else np.hypot(targets.mean(dtype="f8"), targets.std(dtype="f8"))  # their root mean square
    return make_federation(
        partition, data.y, data.X, recipe.with_ranges(scaling, kinds), out,
        (test.X, test.y) if test else None, ids, tests,
        classes=classes, seed=options.seed, provenance=provenance,
        target_scale=2.0 ** max(0, int(np.ceil(np.log2(size / 2)))) if size else 1.0,
        names=data.names and list(data.names), shape=data.shape and list(data.shape),
        recipe=list(recipe.columns) or None,
    )  # fmt: skip


def _in_client_order(data: Samples) -> Samples:
    """The data of natural clients, their rows in an order of their content; test rows of nobody are the first ones."""
    if data.ids is None:
        return data
    test = data.test
    if test is not None and test.ids is not None:
        owner = np.where(np.isin(test.ids, data.ids), test.ids, -1)
        test = test.rows(canonical_order(owner, test.y, test.X))
    return replace(data.rows(canonical_order(data.ids, data.y, data.X)), test=test)


def _remarks(options: Options, data: Samples) -> dict[str, str]:
    """What the summary says besides."""
    remarks = {"index": f"{listed(data.left_out)}: numbers rows, left out"} if data.left_out else {}
    if data.files and data.columns and all(map(str.isdecimal, data.names or "x")):
        remarks["names"] = "numbers: a first line of numbers alone is a row, and columns are called by their places"
    untrained = np.setdiff1d(np.arange(len(data.owners)), data.ids) if options.natural else ()
    if len(untrained):
        rows = np.isin(data.test.ids, untrained).sum() if data.test and data.test.ids is not None else 0
        whose = listed([data.owners[at] for at in untrained], 3)
        remarks["tests"] = f"{whose}: no rows to train on, so no client; rows to test with: {rows}"
    return remarks


def _encode(data: Samples, trained: Flags) -> tuple[Samples, Recipe]:
    """The data with categories as numbers, and gaps filled, as the recipe of the rows `trained` [s] says."""
    raw, test = data.columns, data.test
    if raw is None:
        return data, Recipe()
    recipe, texts = fit_recipe(raw, data.X[trained]), raw.texts.values()
    test = test and replace(test, X=recipe.encode(texts, test.X.T))
    return replace(data, X=recipe.encode(texts, data.X.T), test=test, names=recipe.names(), columns=None), recipe


def _fitted(
    options: Options, data: Samples, recipe: Recipe, kinds: list[str], top: float | None, classes: list[str]
) -> list[str]:
    """What was computed from rows; `top` is the largest value, where the source says that."""
    source, fitted = options.source, [*options.source.computed, *recipe.fitted]
    left = [column.name for column in recipe.columns if column.range is None]
    some = f" of {', '.join(left)}" if len(left) < len(recipe.columns) else ""
    if left or not recipe.columns:
        steps = [kind for kind in kinds if kind != "none"]
        known = steps[:1] == ["unit"] and top is not None
        fitted += [f"scale {kind}{some}" for kind in steps[known:] if kind != "unit-rows"]
    if not source.published:
        in_order = data.ids is not None  # of their content, on which the place of each other row depends
        drawn = options.test_fraction is not None or options.client_test_fraction is not None
        # of which there is a fraction of each class
        fitted += [*classes, *["test rows that were drawn"] * (drawn and (in_order or data.y.dtype.kind == "i"))]
        if in_order and not options.natural and options.split != "columns":
            fitted.append("partition of ordered rows")
    return fitted + [f"partition {options.partition}"] * (options.partition != "iid")


def _scale(data: Samples, kinds: list[str], trained: Flags) -> tuple[Samples, Scaling, list[Step]]:
    """(the data to store, the scaling of their columns that readers apply, what was done before that).

    It is fitted to the rows `trained` [s]. Raises UsageError when a shift would fill a sparse matrix.
    """
    scaling, before = IDENTITY, list[Step]()
    for kind in kinds:
        if kind == "unit-rows":
            before += [ScalingJson.of(scaling), "unit-rows"]
            X, *test = (
                stack_rows([unit_rows(scaling.apply(rows, np.float64)) for _, rows in pieces(part.X)])
                for part in (data, data.test)
                if part is not None
            )
            data, scaling = replace(data, X=X, test=data.test and replace(data.test, X=test[0]), top=None), IDENTITY
        elif kind != "none":
            here = ((X, trained[start : start + X.shape[0]]) for start, X in pieces(data.X))
            fitted = fit(kind, (scaling.apply(X[rows], np.float64) for X, rows in here if rows.any()), data.top)
            data, scaling = replace(data, top=None), fitted if scaling is IDENTITY else scaling.then(fitted)
    return data, scaling, before

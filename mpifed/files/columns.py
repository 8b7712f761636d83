"""The columns of histories and summaries: the one table of their names, labels, units, and where they are shown."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from mpifed.core.record import Array

_TARGET = re.compile(r"\s*(?P<column>\w+)\s*(?P<sign>>=|<=)\s*(?P<value>[^%]+?)\s*(?P<percent>%?)\s*")
Place = Literal["history", "summary", "show", "compare", "vertical", "horizontal", "progress"]


class Column(NamedTuple):
    """A column, or with a name that ends in `_` all numbered columns that begin with it."""

    name: str
    label: str
    meaning: str = ""  # in Markdown
    places: str = "history"  # see `Place`; "vertical" and "horizontal" are axes of a plot
    better: Literal["less", "more"] | None = None
    unit: Literal["", "B", "s", "%"] = ""
    criterion: str = ""  # of `mpifed compare --select`: the last column of a kind that a run has is used
    data: Literal["", "train", "test", "own test"] = ""  # rows over which it is measured: training, common or own test
    since_start: bool = False  # a sum up to the row; all else is of the row's own moment, and of the model by then

    def shown(self, place: Place) -> bool:
        return place in self.places.split()

    def means(self, name: str) -> bool:
        """Whether `name` is the column, or one of the numbered columns."""
        numbered = self.name.endswith("_") and name.startswith(self.name)
        return name == self.name or (numbered and name.removeprefix(self.name).isdecimal())


def _of_clients(
    name: str, label: str, meaning: str, better: Literal["less", "more"], unit: Literal["", "%"] = ""
) -> Iterator[Column]:
    """The columns of a score of each client on its own test rows."""
    of_loss = name == "loss"
    page = "a client's own test rows: [evaluate](../how-to/evaluate.md)"
    for statistic, short, of in (
        ("mean", "mean", "mean over the clients"),
        ("std", "spread", "standard deviation over the clients"),
        ("worst_tenth", "worst tenth", "mean over the worst tenth of the clients"),
    ):
        yield Column(
            f"client_test_{name}_{statistic}", f"clients' {label}, {short}", f"{of} of the {meaning} of {page}",
            "history summary" if of_loss else "history summary show" if statistic == "std" else
            "history summary show compare",
            "less" if statistic == "std" else better, unit, data="own test",
        )  # fmt: skip


TABLE = (
    Column("round", "round", "how many rounds have been run", "history horizontal"),
    Column("rounds", "rounds", places="summary show compare"),
    Column("exit", "exit code", places="summary"),
    Column("relative", "objective above the optimum, relative", places="vertical"),
    Column(
        "train_loss", "training loss",
        "mean loss over all training rows, without penalties; over `[record] evaluate_rows` where that is given",
        "history summary show compare vertical progress", "less", criterion="loss", data="train",
    ),
    Column(
        "objective", "objective",
        "what is minimized: the loss or `[minimize]`, with `l2`, penalties and the regularizer",
        "history summary show compare vertical", "less", criterion="loss", data="train",
    ),
    Column("test_loss", "test loss", "mean loss over the test data",
           "history vertical progress", "less", data="test"),
    Column("excess", "largest excess over a limit", places="vertical", better="less"),
    Column("constraint_values", "constraints", places="summary"),
    Column("constraint_", "constraint", "value F_m of each `[[constraint]]`", "history compare", "less", data="train"),
    Column(
        "kkt_residual", "KKT residual", "the largest of `stationarity`, `feasibility` and `complementarity`; "
        "see [certificates](../explanation/certificates.md)",
        "history summary compare vertical progress", "less", data="train",
    ),
    Column("stationarity", "stationarity", "relative gradient of the Lagrangian", "history summary", "less",
           data="train"),
    Column("feasibility", "infeasibility", "relative excess over a limit", "history summary", "less", data="train"),
    Column("complementarity", "complementarity", "relative multiplier times slack", "history summary", "less",
           data="train"),
    Column("multipliers", "multipliers", places="summary"),
    Column("multiplier_", "multiplier", "multipliers that fit best", data="train"),
    Column("multiplier_error_", "error of the multiplier", "how far they may be from the solution's", data="train"),
    Column("subproblem_multiplier_", "multiplier of the subproblem", "multipliers of the algorithm's last subproblem",
           data="train"),
    Column("slack", "slack", "norm of the slack of the last subproblem", better="less", data="train"),
    Column("slack_cost_", "cost of slack", "what a violation costs in SSCA's subproblem", data="train"),
    Column("margin_", "margin", "how far below its limit SSCA aims", data="train"),
    Column("lower_bound", "lower bound", "of the objective, where all is convex, or the method has a dual",
           "history summary", "more", data="train"),
    Column("dual", "dual value", "value of the dual problem (HyFDCA, bundle, CoCoA+)", better="more", data="train"),
    Column("duality_gap", "duality gap", "objective less that bound", "history summary vertical progress", "less",
           data="train"),
    Column("optimality", "optimality", "FedPDM's measure (21)", better="less", data="train"),
    Column("test_accuracy", "test accuracy", "share of rows of the test data with the right class",
           "history summary show compare vertical progress", "more", "%", criterion="accuracy", data="test"),
    Column("test_rmse", "test RMSE", "root of the mean squared error over the test data; of several targets, the mean",
           "history summary show compare progress", "less", data="test"),
    Column("test_r2", "test R2", "coefficient of determination over the test data; of several targets, the mean",
           "history summary show compare", "more", data="test"),
    Column("test_label_accuracy", "test accuracy of labels", "share of right labels, several of each row of the test "
           "data", "history summary show compare vertical progress", "more", "%", criterion="accuracy", data="test"),
    Column("test_exact_match", "test exact match", "share of rows of the test data all of whose labels are right",
           "history summary show compare", "more", "%", data="test"),
    Column("test_micro_f1", "test micro-F1", "F1 of all labels of the test data together",
           "history summary show compare", "more", data="test"),
    Column("test_macro_f1", "test macro-F1", "mean F1 of the classes of the test data, on request",
           "history summary show compare", "more", data="test"),
    Column("test_auc", "test AUC", "area under the ROC curve, of several classes the mean of each against the rest, on "
           "request", "history summary show compare", "more", data="test"),
    *_of_clients("accuracy", "accuracy", "accuracy", "more", "%"),
    *_of_clients("label_accuracy", "accuracy of labels", "share of right labels", "more", "%"),
    *_of_clients("rmse", "RMSE", "root of the mean squared error", "less"),
    *_of_clients("loss", "test loss", "mean loss", "less"),
    Column("elapsed_s", "training time",
           "seconds of training alone: without evaluation, checkpoints and reading data",
           "history summary show compare horizontal", "less", "s", criterion="time", since_start=True),
    Column("simulated_s", "simulated time of a deployment",
           "seconds in a deployment, with [`[simulated_network]`](../how-to/simulated-network.md)",
           "history summary compare horizontal", "less", "s", criterion="time", since_start=True),
    Column("seconds_per_round", "seconds per round", places="summary", better="less"),
    Column("bytes", "sent, up and down", places="compare horizontal", better="less", unit="B"),
    Column("up_bytes", "uploaded", "what all clients together have uploaded since the start, as in a deployment",
           "history summary show", "less", "B", criterion="bytes", since_start=True),
    Column("down_bytes", "downloaded", "what all clients together have downloaded since the start",
           "history summary show", "less", "B", since_start=True),
    Column("gradients", "gradients of clients",
           "gradients of a row that all clients have computed: rows of the minibatches drawn, as often as a local step "
           "takes their gradient; 0 where a method draws none; empty where participation is secret, and of data that "
           "are not divided by rows",
           "history summary horizontal", "less", since_start=True),
    Column("rss_bytes", "resident memory of the largest rank", "what the largest rank has in memory at that time",
           better="less", unit="B"),
    Column("peak_rss_bytes", "memory of the largest rank", places="summary show", better="less", unit="B"),
    Column("nonzeros", "parameters that are not zero", places="summary", better="less"),
    Column("epsilon", "epsilon of the client who has spent most",
           "[privacy](../how-to/privacy.md) spent by the client who has spent most; empty where infinite or not said",
           "history summary compare horizontal", "less", since_start=True),
    Column("epsilon_if_secret", "epsilon if the noise were secret",
           "what `epsilon` would be if the noise were secret and in integers", "history summary compare", "less",
           since_start=True),
    Column("epsilon_unamplified", "epsilon without amplification",
           "what `epsilon` would be if everybody knew which records were drawn", better="less", since_start=True),
    Column("epsilon_paper", "epsilon of the paper", "the formula of the FedPDM-DP paper, which is no bound",
           since_start=True),
    Column("delta", "delta", places="summary"),
    Column("private", "private", places="summary"),
    Column("model_sha256", "model SHA-256", places="summary show"),
)  # fmt: skip


def shown(place: Place) -> tuple[Column, ...]:
    """The columns of a place, in order."""
    return tuple(column for column in TABLE if column.shown(place))


def labels(place: Place) -> dict[str, str]:
    """The labels of a place, by name of the column."""
    return {column.name: column.label for column in shown(place)}


def column_of(name: str) -> Column:
    """The column of a name; for an algorithm's own column, its properties follow from the name."""
    known = next((column for column in TABLE if column.means(name)), None)
    better: Literal["less", "more"] = "more" if name.endswith("accuracy") else "less"
    return known or Column(name, name.replace("_", " "), better=better, data="train")


def of_kind(criterion: str, there: Iterable[str]) -> str | None:
    """The column used for a criterion among those that a run has; None where it has none."""
    names = set(there)
    return next(
        (column.name for column in reversed(TABLE) if column.criterion == criterion and column.name in names), None
    )


class HistoryTarget(NamedTuple):
    """A value that a column of the history is to reach."""

    column: str
    at_least: bool  # else at most
    value: float

    def __str__(self) -> str:
        value = f"{100 * self.value:g}%" if column_of(self.column).unit == "%" else f"{self.value:g}"
        return f"{self.column} {'>=' if self.at_least else '<='} {value}"

    def is_met(self, values: Array | float) -> Array | bool:
        """Of each of the values; nan meets none."""
        return values >= self.value if self.at_least else values <= self.value


def target_of(text: str) -> HistoryTarget:
    """The target in `test_accuracy>=0.95` or `train_loss<=0.1`, where `95%` is 0.95; ValueError where there is none."""
    match = _TARGET.fullmatch(text)
    try:
        value = float(match["value"]) if match else math.nan
    except ValueError:
        value = math.nan
    if match is None or not math.isfinite(value):
        raise ValueError('expected COLUMN>=NUMBER or COLUMN<=NUMBER, in quotes, as "test_accuracy>=0.95"')
    value = value / 100 if match["percent"] else value
    if column_of(match["column"]).unit == "%" and not 0 <= value <= 1:
        raise ValueError(
            f"{match['column']} is between 0 and 1; give a share or a percentage, as "
            f"{match['column']}{match['sign']}0.9 or {match['column']}{match['sign']}90%"
        )
    return HistoryTarget(match["column"], match["sign"] == ">=", value)


CRITERIA = tuple(dict.fromkeys(column.criterion for column in TABLE if column.criterion))

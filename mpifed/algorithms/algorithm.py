"""The base class of all algorithms: everything that a run, an audit or a forecast reads of one, with its default.

The classes of states, of models and of what is released are each algorithm's own, and `Any` here: an author names the
own class in their place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

from mpifed.hyperparameters import MadeByKeywords

if TYPE_CHECKING:
    from mpifed.algorithms.measure import Measure
    from mpifed.algorithms.reveals import Received, Revealed
    from mpifed.core.exchange import Block, Exchange
    from mpifed.core.record import Record
    from mpifed.core.round import Round
    from mpifed.maths.problem import Problem


@dataclass(frozen=True)
class Algorithm(MadeByKeywords, ABC):
    """A frozen dataclass of hyper-parameters with pure methods; `problem` is set by the run.

    The other fields are the keys of the table `[algorithm]`. A subclass must give `exchanges`, `measures` and
    `start_server`; all else has a default. Algorithms for data split by rows derive from
    `Rows`, those for columns from `mpifed.algorithms.columns.Columns`, and those for
    both from `mpifed.algorithms.cells.Grid`, which give the measures too. What is a property here may be a
    constant of the class: `regularized: ClassVar[bool] = True`.

    Attributes
    ----------
    problem : what is public about the task; set by the run
    default_security : how sums travel where `[aggregation] security` does not say
    constrained : whether it minimizes `[minimize]` and meets `[[constraint]]`
    regularized : whether it takes `[regularizer]`, and the model's `nonconvex_penalty`
    needs_everybody : whether every client must take part in every round
    why_everybody : the reason, where it does
    certifies_gap : whether a bound of `duality_gap` in `[stop]` may end its runs
    why_no_gap : the reason, where it may not and its measures have no gap
    why_no_start : the reason, where it can't begin at the model of `[model] start`
    why_no_privacy : the reason, where it has no `released` and so takes no `[privacy]`
    intercepts : whether models may have intercepts
    personal : (what n clients keep, the server's model) -> leaves [n, ...], the models by which these are judged on
        their own test rows; None: all by the server's
    played : the names of what plays a round, by which `holds` goes
    """

    problem: Problem = field(default=cast("Problem", None), kw_only=True, repr=False)

    default_security: ClassVar[str] = "plain"
    why_everybody: ClassVar[str] = "each holds other columns"
    why_no_gap: ClassVar[str] = "it keeps no dual variables"
    why_no_start: ClassVar[str] = "its `start_server` does not take `problem.start`"
    why_no_privacy: ClassVar[str] = "does not say what it releases, so nobody could account for it"
    intercepts: ClassVar[bool] = True
    personal: ClassVar[Callable[..., Any] | None] = None  # a record of the models' class
    played: ClassVar[tuple[str, ...]] = ("exchanges", "answer", "absorb")

    @property
    def constrained(self) -> bool:
        """Whether it supports constraints and `[minimize]`."""
        return False

    @property
    def regularized(self) -> bool:
        """Whether it supports `[regularizer]` and the nonconvex penalty."""
        return False

    @property
    def needs_everybody(self) -> bool:
        """Whether every client must take part in every round."""
        return False

    @property
    def certifies_gap(self) -> bool:
        """Whether its own duality gap may end a run."""
        return False

    @classmethod
    def for_split(cls, split: str) -> type[Algorithm]:
        """The class that runs on data split like that ("rows", "columns" or "grid"), where these differ."""
        return cls

    @classmethod
    def holds(cls, member: str, *methods: str) -> bool:
        """Whether what a member says, or does in place of methods, holds: no newer class has changed one of these."""
        return all(depth(cls, member) <= depth(cls, method) for method in methods or cls.played)

    # --- what is run ------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def exchanges(self) -> tuple[Exchange, ...]:
        """What is run in one round, in this order: a tuple of `Exchange`."""

    @property
    def setup(self) -> tuple[Exchange, ...]:
        """What is run once before round 0; see `exchanges`."""
        return ()

    @property
    @abstractmethod
    def measures(self) -> tuple[Measure, ...]:
        """What is summed over all rows at evaluated rounds, outside the measured time; () without such columns."""

    @abstractmethod
    def start_server(self, now: Round) -> Record:
        """The server's state before round 0; on the server, once.

        A NamedTuple whose fields are NumPy arrays or scalars of numbers, or again such records. What must survive a
        round is in it. `absorb` gives the next one, of the same fields, shapes and dtypes. The field `model` holds
        `mpifed.maths.objectives.Parameters`, unless `model()` says otherwise.
        """

    def start_clients(self, block: Block, now: Round) -> Record:
        """The states of the block's n clients before they first take part; () when they keep nothing.

        A NamedTuple of arrays [n, ...], in NumPy or, with `block.xp`, where the block is. `answer`, or `hear`, gives
        the next one.
        """
        return ()

    def model(self, server: Any) -> Any:
        """The model as it stands, to be measured and saved; by default the field `model` of the state."""
        return server.model

    def measured(self, server: Any, columns: Mapping[str, float | None]) -> Any:
        """The server's state after its model was measured at an evaluated round; `columns` are those of its row."""
        return server

    def returned(self, server: Any) -> tuple[Any, int | None]:
        """(the state whose model the run returns if it ends now, the round that it is of); None: as it stands."""
        return server, None

    # --- checks, and reports of a run -------------------------------------------------------------------------------

    def check(self) -> list[str]:
        """Errors of the hyper-parameters for this problem, one message each; before anything is run.

        For instance `[algorithm] batch_size = 80: the smallest shard (client 7) has 60 samples; lower batch_size`.
        """
        return []

    def warnings(self) -> list[str]:
        """Settings that are allowed and may still surprise, one message each, which the run prints."""
        return []

    def report(self, server: Any) -> Mapping[str, float]:
        """Columns of the history that the server computes alone, by name; the same at every evaluated round."""
        return {}

    def remarks(self, server: Any, measured: Mapping[str, float | None]) -> list[str]:
        """Remarks on the last state for run.json, one message each; `measured` are the columns of its row."""
        return []

    # --- privacy, and what an audit must know -----------------------------------------------------------------------

    def released(self) -> Any:
        """What the server releases in each round, the same in all: `mpifed.maths.privacy.release.Release`.

        An algorithm without it is refused with `[privacy]`.
        """
        raise NotImplementedError

    @classmethod
    def accounts(cls) -> bool:
        """Whether it implements `released` for what it plays, and has not changed that since."""
        return cls.released is not Algorithm.released and cls.holds("released", "setup", *cls.played)

    def reveals(self, received: Received) -> Iterable[Revealed]:
        """What one client's upload, or a sum, reveals about private rows: see `mpifed.algorithms.reveals`.

        An audit reports that an algorithm leaves this out, and attacks nothing of which nothing is declared.
        """
        return ()

    def trust(self, plain: bool) -> Iterable[str]:
        """Which parts of the paper's trust model hold, in words; `plain`: whether sums travel in the clear."""
        return ()


def depth(kind: type, name: str) -> int:
    """Index in the method resolution order of the class that defines a member."""
    return next((i for i, ancestor in enumerate(kind.__mro__) if name in vars(ancestor)), len(kind.__mro__))


class Rows(Algorithm):
    """The base of algorithms for data split by rows: measures losses, constraints and certificates.

    Its `check` may begin with `check_rows(self.problem, batch_size)`.
    """

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Training loss, objective and constraints; the certificate."""
        from mpifed.algorithms.measures import measures_of_rows  # which no round needs

        return measures_of_rows(self)

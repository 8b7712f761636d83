"""Exhaustive checks of all masks and ciphertexts: no sampling, and a negligible probability of a false alarm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpifed.audit import dropout_secrets, mask_graph, masks, running_sums, secret_keys
from mpifed.audit.messages import private_uploads
from mpifed.audit.outside_uploads import ClassifiedMessages, copies
from mpifed.audit.replay import Replay
from mpifed.core.round import SETUP
from mpifed.run.transcript import RecordedMessage, client_of

NO_MASK, REPEATED, LEFT, SHARED, FEW, UNEVEN, ESCROW, ALIKE, SENT, SERVER = (
    "no-mask", "repeated-mask", "mask-left", "shared-stream", "few-streams", "uneven-mask", "opened-more",
    "same-randomness", "key-sent", "key-with-server",
)  # fmt: skip
COPY, UNKNOWN = "plain-copy", "unknown-message"
NAMES = {
    NO_MASK: "numbers that should be masked were sent unmasked",
    REPEATED: "a mask was reused, possibly shifted or with the opposite sign",
    LEFT: "masks do not cancel in a sum for the server, which differs from the sum of the clients' uploads",
    SHARED: "a key stream masks messages of clients other than its pair, or several messages of one client",
    FEW: "clients share masks with too few others or only within separate groups, or lack a mask of their own",
    UNEVEN: "bits of masks are not uniform",
    ESCROW: "shares of clients' secrets reveal more than the sum without the clients that dropped out",
    ALIKE: "two ciphertexts were made with the same or nearly the same randomness",
    SENT: "a message contains a secret key",
    SERVER: "the server has a secret key of the clients",
    COPY: "numbers of a client's upload are sent in the clear outside the masked or encrypted upload",
    UNKNOWN: "a message is of a kind or size that the protocol does not send",
}
_NOTHING = {
    NO_MASK: "no zero", REPEATED: "no repeat", LEFT: "all cancel", SHARED: "no shared stream",
    FEW: "no stream missing", UNEVEN: "all bits uniform", ESCROW: "no shares of both secrets of a client",
    ALIKE: "no shared randomness", SENT: "no key in a message as bytes, hex or base64",
    SERVER: "no key with the server", COPY: "no copy in the clear", UNKNOWN: "no unknown message",
}  # fmt: skip
_UNKNOWN = {NO_MASK: "zeros: not checked", LEFT: "sums: not checked", UNEVEN: "bits: checked in streams only"}
NOTHING_SEALED = "nothing is masked or encrypted"
_SHOWN = 3


class ExactChecks(NamedTuple):
    """What was checked, and the findings."""

    what: str  # "masks", "ciphertexts"; "" with plain security
    clients: int  # whose uploads were checked
    of_clients: int  # that sent any
    rounds: int
    outside_rounds: int  # uploads outside the rounds
    words: int  # of masks; of encryption, the number of ciphertexts
    of_words: int
    streams: int  # key streams of the auditor's replay that were checked
    of_streams: int
    false_alarm: float  # upper bound of its probability
    occurrences: dict[str, list[str]]  # by finding that was looked for, each occurrence in words
    of_rounds: int = 0  # that the auditor has replayed

    @property
    def text(self) -> str:
        """Coverage and verdict in words."""
        if not self.what:
            return NOTHING_SEALED
        more = f"of {self.of_rounds} " if self.rounds < self.of_rounds else ""
        unit = "words" if self.what == "masks" else "ciphertexts"
        covered = f"{self.clients:,} of {self.of_clients:,} clients, {self.rounds} {more}rounds"
        covered += f", {self.outside_rounds:,} uploads outside them" if self.outside_rounds else ""
        covered += f", {self.words:,} of {self.of_words:,} {unit}"
        if self.of_streams:
            covered += f", {self.streams:,} of {self.of_streams:,} streams of the auditor's replay"
        phrases = [NAMES[name] if places else self._nothing(name) for name, places in self.occurrences.items()]
        return f"{self.what}: {covered}: {', '.join(filter(None, phrases))}"

    def _nothing(self, name: str) -> str:
        """The phrase for a finding without occurrences: there are none, or the check was not possible."""
        if name in (SHARED, FEW) and not self.streams:
            return "streams: none recorded" if name == SHARED else ""
        if self.what == "masks" and not self.words:  # with secret noise, masks are not known
            return {**_NOTHING, **_UNKNOWN}[name]
        return _NOTHING[name]

    @property
    def leaks(self) -> dict[str, list[str]]:
        """By finding, its first few occurrences."""
        more = {name: len(places) - _SHOWN for name, places in self.occurrences.items()}
        return {
            name: [*places[:_SHOWN], *[f"and {more[name]} more"] * (more[name] > 0)]
            for name, places in self.occurrences.items() if places
        }  # fmt: skip


def exact_checks(replay: Replay, classified: ClassifiedMessages, plain: Replay, same_run: bool) -> ExactChecks:
    """All exhaustive checks of masked or encrypted messages.

    Parameters
    ----------
    classified : the messages, classified by `mpifed.audit.outside_uploads.classify`
    plain : the same rounds with plain security
    same_run : whether the messages are those of `replay`
    """
    channel = replay.transcript.channel
    if channel == "plain":
        return ExactChecks("", 0, 0, 0, 0, 0, 0, 0, 0, 0.0, {})
    keys = {SENT: secret_keys.messages_with_keys(replay), SERVER: secret_keys.keys_with_server(replay)}
    keys |= {COPY: copies(classified.suspect, plain), UNKNOWN: classified.strange}
    checks = (_of_masks if channel == "masked" else _of_ciphertexts)(replay, classified.sound, plain, same_run, keys)
    senders = set(map(client_of, private_uploads(replay, replay.transcript.messages)))  # as played here
    return checks._replace(of_clients=max(checks.of_clients, len(senders)), of_rounds=len(replay.round_starts))


def _of_masks(
    replay: Replay, messages: Sequence[RecordedMessage], plain: Replay, same_run: bool, keys: dict[str, list[str]]
) -> ExactChecks:
    keys[SENT] = list(dict.fromkeys([*keys[SENT], *dropout_secrets.messages_with_secrets(replay)]))
    known, sealed, totals, left = masks.masks_of(replay, messages, plain, same_run)
    sums, lengths = running_sums.masks_of_running_sums(replay, plain) if same_run else ([], [])
    known += sums
    all_masks, streams = [*known, *sealed], replay.streams
    words, of_words = (sum(len(mask.words) for mask in group) for group in (known, all_masks))
    tests = 128 * (len({(mask.exchange, mask.client) for mask in known + totals}) + replay.algorithm.problem.clients)
    tested = words + sum(len(mask.words) for mask in totals)
    times = len({(mask.exchange, mask.turn) for mask in known})  # upper bound on the masks of one position
    return ExactChecks(
        "masks", len({mask.client for mask in known}), len({mask.client for mask in all_masks}),
        len({mask.round for mask in known} - {SETUP}), sum(mask.round == SETUP for mask in known), words, of_words,
        len(streams.uses) if streams else 0, streams.made if streams else 0,
        (tested + words * times) / 2.0**64 + tested**2 / 2.0**128 + tests * 2.5e-14 + masks.LEVEL * bool(sealed),
        {
            NO_MASK: [*masks.zeros(known), *masks.zeros(totals), *lengths],
            REPEATED: [
                *masks.repeated(known), *masks.repeated(totals), *masks.same_word(known), *masks.alike(sealed),
            ],
            LEFT: left,
            SHARED: streams.shared() if streams else [],
            FEW: mask_graph.missing_streams(streams, replay.job) if streams else [],
            UNEVEN: [*masks.uneven(known), *masks.uneven(totals), *(streams.uneven() if streams else [])],
            **({ESCROW: dropout_secrets.rebuilt(replay)} if replay.job.participation.max_dropouts else {}), **keys,
        },
    )  # fmt: skip


def _of_ciphertexts(
    replay: Replay, messages: Sequence[RecordedMessage], plain: Replay, same_run: bool, keys: dict[str, list[str]]
) -> ExactChecks:
    uploads = private_uploads(replay, messages)
    clients = len({client_of(upload) for upload in uploads})
    count, alike = secret_keys.shared_randomness(replay, uploads, messages)
    rounds, outside_rounds = {upload.round for upload in uploads} - {SETUP}, [u for u in uploads if u.round == SETUP]
    return ExactChecks(
        "ciphertexts", clients, clients, len(rounds), len(outside_rounds), count, count, 0, 0, count**2 / 2.0**71,
        {ALIKE: alike, **keys},
    )  # fmt: skip

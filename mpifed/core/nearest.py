"""Misspelt names, and those of other libraries: the known one that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable

_ALIKE = 0.65  # of 1: how alike two names are, for the first to count as a misspelling of the second
# what other libraries call a key
SYNONYMS = {
    "lr": "learning_rate", "eta": "learning_rate", "step_size": "learning_rate", "epochs": "local_epochs",
    "local_ep": "local_epochs", "steps": "local_steps", "num_steps": "local_steps", "local_bs": "batch_size",
    "n_rounds": "rounds", "num_rounds": "rounds", "global_rounds": "rounds", "penalty": "l2", "reg": "l2",
    "frac": "clients_per_round", "num_clients": "clients_per_round", "intercept": "bias", "fit_intercept": "bias",
    "hidden_size": "hidden", "hidden_layer_sizes": "hidden", "random_state": "seed",
    "optimizer": "client_optimizer", "weight-decay": "weight_decay", "schedule": "name",
}  # fmt: skip


def nearest(word: str, known: Iterable[str]) -> str:
    """'; did you mean "batch_size"?', or empty where no known word is similar; of known ones, those that are public."""
    words = [other for other in known if not other.startswith("_")]
    plain = {_plain(other): other for other in reversed(words)}
    synonym = SYNONYMS.get(word.lower())
    if synonym in words:
        return f'; did you mean "{synonym}"?'
    from difflib import get_close_matches  # for messages alone

    near = get_close_matches(_plain(word), list(plain), n=1, cutoff=_ALIKE)
    return f'; did you mean "{plain[near[0]]}"?' if near else ""


def _plain(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())

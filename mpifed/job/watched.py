"""Settings that nobody reads."""

from __future__ import annotations


class Watched:
    """An optimizer, and which of its settings nobody has read yet: of those that differ from their defaults."""

    def __init__(self, optimizer: object) -> None:
        self.optimizer = optimizer
        self.unread = {key for key, value in vars(optimizer).items() if value != getattr(type(optimizer), key, value)}

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # as of copying, which asks before there is an optimizer
            raise AttributeError(name)
        self.unread.discard("learning_rate" if name == "at" else name)
        if name in ("step", "direction"):  # which read all
            self.unread.clear()
        return getattr(self.optimizer, name)

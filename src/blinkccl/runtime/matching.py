"""Matching of messages with receives: a state machine without memory, threads or clocks.

Messages from one source come in order; each has a tag. A receive names a tag, and a source or any. A message takes
the first receive, in the order in which they were posted, that it fits; a receive takes the first message that
fits it. A message that nobody wants yet waits on its wire, and with it all that come after it from that source,
unless someone waits for one of those: then it is set aside.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Receive:
    """What is wanted: ``source`` None is any."""

    source: int | None
    tag: int

    def fits(self, source: int, tag: int) -> bool:
        """Whether a message from ``source`` with ``tag`` may go here."""
        return tag == self.tag and self.source in (None, source)


@dataclass(slots=True)
class Matching:
    """Posted receives, and messages set aside, as (tag, whatever the caller keeps of them)."""

    posted: list[Receive] = field(default_factory=list)
    aside: dict[int, deque[tuple[int, bytes]]] = field(default_factory=dict)

    def post(self, receive: Receive) -> tuple[int, bytes] | None:
        """Takes ``receive`` on, or returns the source and content of the message that was set aside for it."""
        for source, messages in self.aside.items():
            for place, (tag, content) in enumerate(messages):
                if receive.fits(source, tag):
                    del messages[place]
                    return source, content
        self.posted.append(receive)
        return None

    def arrive(self, source: int, tag: int) -> Receive | None:
        """The receive that a message takes, which is then no longer posted; None: nobody wants it yet."""
        for receive in self.posted:
            if receive.fits(source, tag):
                self.posted.remove(receive)
                return receive
        return None

    def set_aside(self, source: int, tag: int, content: bytes) -> None:
        """Keeps a message that nobody wants yet."""
        self.aside.setdefault(source, deque()).append((tag, content))

    def waits_for(self, source: int) -> bool:
        """Whether a receive could be served by a message from ``source``."""
        return any(receive.source in (None, source) for receive in self.posted)

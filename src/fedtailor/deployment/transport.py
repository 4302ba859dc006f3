"""What the server's round loop needs of a transport: requests go to clients, replies come back in
any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

from fedtailor.deployment.envelope import Envelope


class SiteFailure(NamedTuple):
    """A request that got no usable reply."""

    kind: Literal["unavailable", "failed"]
    """``unavailable``: the site is not connected, or was lost. ``failed``: it answered, but not
    with a message."""
    text: str
    """What happened, in one line."""


class Transport(Protocol):
    """Carries messages between the server and the sites, which are known by their client
    numbers.
    """

    def send(self, requests: Mapping[int, Envelope]) -> None:
        """Send a request to each client.

        A client may be asked again before it has answered: a resend. The reply to any of its
        requests since :meth:`forget` counts, and after it the replies to the others are dropped.
        """

    def receive(self, seconds: float) -> list[tuple[int, Envelope | SiteFailure]]:
        """Return the replies that have arrived, by client. Wait at most so long for the first."""

    def forget(self) -> None:
        """Drop all later replies to what was sent so far."""

    def online(self) -> set[int]:
        """Return the clients whose sites are connected."""

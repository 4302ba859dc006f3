"""The transport over Flower's grid."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from fedtailor.core.errors import DataError, describe_error, one_line
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.exchange import SiteFailure
from fedtailor.deployment.flower.goodbyes import Goodbyes
from fedtailor.deployment.flower.records import MESSAGE_TYPE, pack, unpack

_POLL_SECONDS = 0.1
_LIFETIME = 24 * 3600.0
"""Seconds for which Flower keeps a request that nobody has fetched, and its reply."""
_UNAVAILABLE = {
    3: "the request was lost on its way",
    4: "the answer was lost on its way",
    5: "the site has lost its connection",
    8: "the program that passes requests on has died at the site",
}
"""Flower's codes for what may go better when the request is sent again, and what they mean."""


class GridTransport:
    """Sends requests to sites as messages to Flower's nodes.

    Args:
        grid: as Flower gives it to the ServerApp.
        read_nodes: returns the ids of the sites' nodes by client number. A site has one some
            seconds after it was added, and none any more once it was removed.
        goodbyes: says which sites were stopped.
    """

    def __init__(
        self, grid: Grid, read_nodes: Callable[[], Mapping[int, int]], goodbyes: Goodbyes
    ) -> None:
        self._grid = grid
        self._goodbyes = goodbyes
        self._read_nodes = read_nodes
        self._asked: dict[str, tuple[int, int]] = {}
        """By the number of a request: the client and the node that were asked."""
        self._refused: list[tuple[int, SiteFailure]] = []

    def send(self, requests: Mapping[int, Envelope]) -> None:
        """Send a request to each client; see :class:`~fedtailor.deployment.exchange.Transport`.

        Raises:
            DataError: a request cannot be sent.
        """
        nodes = self._read_nodes()
        asked = []
        messages = []
        for client, request in requests.items():
            if client not in nodes:
                self._refuse(client, "Flower has no node for the site")
                continue

            asked.append((client, nodes[client]))
            messages.append(_message(nodes[client], request))

        # Flower answers with an empty list to requests that are too large together.
        numbers = list(self._grid.push_messages(messages)) or [None] * len(messages)
        for addressee, number in zip(asked, numbers, strict=True):
            if number is None:
                text = "Flower did not take the request: no such node, or too large"
                self._refuse(addressee[0], text)
            else:
                self._asked[number] = addressee

    def receive(self, seconds: float) -> list[tuple[int, Envelope | SiteFailure]]:
        """Return the replies that have arrived, by client; wait at most ``seconds`` for one."""
        end = time.monotonic() + seconds
        while True:
            replies = [*self._refused, *self._fetch()]
            self._refused.clear()
            left = end - time.monotonic()
            if replies or left <= 0:
                return replies
            time.sleep(min(_POLL_SECONDS, left))

    def forget(self) -> None:
        """Drop all later replies to what was sent so far."""
        self._asked.clear()
        self._refused.clear()

    def online(self) -> set[int]:
        """Return the clients whose sites are connected."""
        connected = set(self._grid.get_node_ids())
        return {client for client, node in self._read_nodes().items() if node in connected}

    def stopped(self) -> dict[int, float]:
        """Return the clients whose sites have said that they stop, and when."""
        away = self._goodbyes.read()
        return {client: away[node] for client, node in self._read_nodes().items() if node in away}

    def _refuse(self, client: int, reason: str) -> None:
        self._refused.append((client, SiteFailure("unavailable", reason)))

    def _fetch(self) -> list[tuple[int, Envelope | SiteFailure]]:
        numbers = list(self._asked)
        if not numbers:
            return []

        try:
            return self._note(list(self._grid.pull_messages(numbers)))
        except httpx.HTTPError:
            raise
        except Exception:  # one damaged reply must not hide the others
            replies = []
            for number in numbers:
                replies += self._fetch_one(number)
            return replies

    def _fetch_one(self, number: str) -> list[tuple[int, Envelope | SiteFailure]]:
        if number not in self._asked:
            return []

        try:
            return self._note(list(self._grid.pull_messages([number])))
        except httpx.HTTPError:
            raise
        except Exception as error:
            failure = SiteFailure("damaged", f"the reply is damaged: {describe_error(error)}")
            client, _ = self._asked.pop(number)
            return [(client, failure)]

    def _note(self, messages: list[Message]) -> list[tuple[int, Envelope | SiteFailure]]:
        replies = []
        for message in messages:
            addressee = self._asked.pop(message.metadata.reply_to_message_id, None)
            if addressee is None:  # a second reply of the same client, or one of another batch
                continue

            client, node = addressee
            reply = _read(message, node)
            replies.append((client, reply))
            # One reply is enough: those to repeats of the request are dropped.
            if isinstance(reply, Envelope):
                others = {key: other for key, other in self._asked.items() if other[0] != client}
                self._asked = others

        return replies


def _message(node: int, request: Envelope) -> Message:
    return Message(pack(request), message_type=MESSAGE_TYPE, dst_node_id=node, ttl=_LIFETIME)


def _read(message: Message, node: int) -> Envelope | SiteFailure:
    """Return what a reply says; it counts only if it comes from the node that was asked."""
    sender = message.metadata.src_node_id
    if message.has_error():
        code = message.error.code
        if code in _UNAVAILABLE:
            return SiteFailure("unavailable", _UNAVAILABLE[code])
        return SiteFailure("failed", one_line(f"Flower error {code}: {message.error.reason}"))

    if sender != node:
        text = f"the reply comes from another node: {sender} instead of {node}"
        return SiteFailure("damaged", text)

    try:
        return unpack(message.content)
    except DataError as error:
        return SiteFailure("damaged", one_line(error.message))
    except Exception as error:  # Flower's records are built from what the site sent
        return SiteFailure("damaged", f"the reply is damaged: {describe_error(error)}")

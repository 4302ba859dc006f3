"""When a request is sent again: later each time while a site works, soon where the request is known
to be lost."""

from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.exchange import Exchange, SiteFailure
from fedtailor.deployment.options import DeployOptions


class Clock:
    """Half a second passes with every look at the transport."""

    def __init__(self, replies=()):
        """Take replies as (second, client, reply)."""
        self.now = 0.0
        self.sent = []
        self.replies = list(replies)

    def __call__(self):
        """Return the time."""
        return self.now

    def send(self, requests):
        """Note who is asked, and when."""
        self.sent += [(self.now, client) for client in requests]

    def receive(self, seconds):
        """Return what has arrived."""
        self.now += seconds
        arrived = [(client, reply) for when, client, reply in self.replies if when <= self.now]
        self.replies = [reply for reply in self.replies if reply[0] > self.now]
        return arrived

    def forget(self):
        """Forget nothing."""


def sent(replies, **options):
    """Return when each site was asked."""
    clock = Clock(replies)
    exchange = Exchange(clock, DeployOptions(**options), clock=clock)
    exchange.ask({0: Envelope({}), 1: Envelope({})})
    return {client: [when for when, asked in clock.sent if asked == client] for client in (0, 1)}


def test_a_site_that_works_for_long_is_asked_again_ever_later():
    replies = [(1.0, 1, Envelope({})), (300.0, 0, Envelope({}))]
    assert sent(replies, deadline=600.0, resend=20.0) == {0: [0.0, 20.0, 60.0, 140.0], 1: [0.0]}


def test_a_request_that_was_lost_is_sent_again_soon():
    replies = [
        (1.0, 1, Envelope({})),
        (70.0, 0, SiteFailure("unavailable", "lost")),
        (200.0, 0, Envelope({})),
    ]
    assert sent(replies, deadline=600.0, resend=20.0)[0] == [0.0, 20.0, 60.0, 90.0, 130.0]

"""How long the server waits for whom, by a clock of the test's own."""

import time

import pytest
import torch

from fedtailor.core.codec import encode
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.exchange import Exchange, SiteFailure
from fedtailor.deployment.options import DeployOptions
from sites import to_bytes


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("localhost", "127.0.0.1"),
        ("fl.example.org", "0.0.0.0"),
        ("::1", "::1"),
        ("2001:db8::5", "::"),
    ],
)
def test_a_server_listens_where_its_host_can_be_reached(host, address):
    assert DeployOptions(host=host).listening_address == address


REQUEST = Envelope({"kind": "train"}, {})
ANSWER = Envelope({"kind": "train", "ok": True}, {})


class Planned:
    """A transport in which every site answers at a given second, counted from the first request."""

    def __init__(self, times, failures=(), away=None):
        """Take the second of every site's answer; None: never. ``failures``: (second, site,
        failure). ``away``: seconds since a site was stopped."""
        self.away = away or {}
        self.times = times
        self.failures = list(failures)
        self.now = 0.0
        self.sent = []
        self.done = set()

    def clock(self):
        return self.now

    def send(self, requests):
        self.sent.append((self.now, sorted(requests)))

    def receive(self, seconds):
        self.now += seconds
        arrived = []
        for site, second in self.times.items():
            if second is not None and second <= self.now and site not in self.done:
                self.done.add(site)
                arrived.append((site, ANSWER))
        for failure in list(self.failures):
            if failure[0] <= self.now:
                self.failures.remove(failure)
                arrived.append(failure[1:])
        return arrived

    def forget(self):
        pass

    def online(self):
        return set(self.times)

    def stopped(self):
        return {site: time.time() - age for site, age in self.away.items()}


def ask(transport, needed=1, **options):
    """Return the answers and how long it took."""
    exchange = Exchange(transport, DeployOptions(**options), clock=transport.clock)
    answers = exchange.ask(dict.fromkeys(transport.times, REQUEST), needed=needed)
    return answers, transport.now, exchange


def known(attendance, name):
    """Return what is known of some sites, by number."""
    values = {client: getattr(seen, name) for client, seen in attendance.items()}
    return {client: value for client, value in values.items() if value}


def test_it_ends_when_all_have_answered():
    answers, seconds, _ = ask(Planned({0: 3, 1: 7, 2: 5}), deadline=90)
    assert list(answers) == [0, 1, 2]
    assert seconds == 7


def test_it_ends_at_the_deadline_without_the_silent_ones():
    answers, seconds, exchange = ask(Planned({0: 3, 1: None, 2: 5}), deadline=90)
    assert list(answers) == [0, 2]
    assert seconds == 90
    assert set(known(exchange.attendance, "heard")) == {0, 2}


@pytest.mark.parametrize(
    ("away", "needed", "seconds"),
    [({1: 70.0}, 1, 5.5), ({1: 50.0}, 1, 90), ({2: 70.0}, 1, 90), ({1: 70.0}, 3, 200)],
    ids=["stopped", "just stopped", "another one", "needed"],
)
def test_it_does_not_wait_for_a_site_that_was_stopped(away, needed, seconds):
    last = 200 if needed == 3 else None
    transport = Planned({0: 3, 1: last, 2: 5}, away=away)
    answers, waited, _ = ask(transport, deadline=90, needed=needed)
    assert (0 in answers, 2 in answers, waited) == (True, True, pytest.approx(seconds, abs=0.6))
    if seconds == 5.5:
        assert answers[1] == SiteFailure("unavailable", "it was stopped")


@pytest.mark.parametrize("needed", [1, 3])
def test_nobody_waits_for_a_site_that_is_paused_meanwhile(needed):
    transport = Planned({0: 3, 1: None, 2: 5})
    waiting = []
    exchange = Exchange(
        transport,
        DeployOptions(deadline=90),
        clock=transport.clock,
        notify=lambda attendance: waiting.append(set(known(attendance, "waiting_since"))),
        away=lambda: {1: "it was paused"} if transport.now >= 4 else {},
    )
    answers = exchange.ask(dict.fromkeys(transport.times, REQUEST), needed=needed)
    assert transport.now == 5 and answers[1].text == "it was paused"
    assert waiting[0] == {0, 1, 2} and {2} in waiting and waiting[-1] == set()


def test_after_the_quorum_the_others_are_given_the_grace():
    answers, seconds, _ = ask(
        Planned({0: 3, 1: 5, 2: 40, 3: 12}), deadline=90, quorum=0.5, grace=10
    )
    assert list(answers) == [0, 1, 3]
    assert seconds == 15


def test_who_gave_no_answer_is_silent_until_the_next_one():
    transport = Planned({0: 3, 1: None, 2: 5})
    exchange = Exchange(transport, DeployOptions(deadline=90), clock=transport.clock)
    requests = dict.fromkeys(transport.times, REQUEST)
    exchange.ask(requests)
    (since,) = known(exchange.attendance, "silent_since").values()
    transport.done.clear()
    exchange.ask(requests)
    assert known(exchange.attendance, "silent_since") == {1: since}

    # Whoever is not needed is not silent.
    transport.done.clear()
    transport.times[1] = 0
    transport.times[2] = None
    exchange.ask(requests, enough=2)
    assert known(exchange.attendance, "silent_since") == {}


@pytest.mark.parametrize("needed", [1, 2])
def test_it_waits_beyond_the_deadline_for_those_that_are_needed(needed):
    answers, seconds, _ = ask(Planned({0: 200, 1: 300, 2: None}), needed=needed, deadline=90)
    assert list(answers) == [0, 1][:needed]
    assert seconds == [200, 300][needed - 1]


def test_requests_are_sent_again_to_those_that_are_silent_less_and_less_often():
    transport = Planned({0: 3, 1: None})
    ask(transport, deadline=200, resend=10)
    assert transport.sent == [(0.0, [0, 1]), (10.0, [1]), (30.0, [1]), (70.0, [1]), (150.0, [1])]


def test_a_request_that_was_lost_is_sent_again_soon():
    lost = SiteFailure("unavailable", "lost")
    transport = Planned({0: 200, 1: 1}, [(70.0, 0, lost)])
    ask(transport, deadline=600, resend=20)
    assert [second for second, sites in transport.sent if 0 in sites] == [0, 20, 60, 90, 130]


def test_a_site_that_is_away_may_still_answer_and_one_that_failed_too():
    away = SiteFailure("unavailable", "the node is gone")
    failed = SiteFailure("failed", "damaged")
    answers, _, exchange = ask(
        Planned({0: 3, 1: 20, 2: None}, [(4, 1, away), (4, 2, failed)]), deadline=30
    )
    assert answers == {0: ANSWER, 1: ANSWER, 2: failed}
    assert known(exchange.attendance, "problem") == {2: "damaged"}


def test_answers_that_do_not_belong_to_the_request_are_dropped():
    transport = Planned({0: 3, 1: 4})
    exchange = Exchange(transport, DeployOptions(deadline=10), clock=transport.clock)
    answers = exchange.ask(dict.fromkeys((0, 1), REQUEST), accept=lambda site, answer: site == 1)
    assert list(answers) == [1]


def test_a_message_of_a_megabyte_takes_two_percent_more_at_most():
    leaves = {
        f"layer{number}": {"weight": torch.zeros(200, 125), "bias": torch.zeros(200)}
        for number in range(11)
    }
    numbers = sum(4 * leaf.numel() for layer in leaves.values() for leaf in layer.values())
    assert numbers > 1_000_000
    out = {
        "upload": {"values": {"model": leaves}},
        "metrics": {"loss": torch.zeros(())},
        "scores": (),
    }
    assert (
        len(to_bytes(Envelope({"kind": "train", "round": 7}, {"out": encode(out)})))
        < 1.02 * numbers
    )

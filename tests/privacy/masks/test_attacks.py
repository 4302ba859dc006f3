"""A server that deviates, alone or with sites, learns one sum per round at most.

Every attack is refused by what its test names. Those that isolate a site succeed against sites
without the agreement on who is in a sum, or without confirmations, so they are known to bite.
"""

import numpy as np
import pytest

from fedtailor.privacy.masks.keys import Bundle, check_bundle, check_channels
from fedtailor.privacy.masks.primitives import (
    RefusedError,
    add_key_stream,
    derive,
    digest_of,
    public_key,
    split_texts,
)
from fedtailor.privacy.masks.server import TooFewSharesError, unmask
from fedtailor.privacy.masks.session import (
    digest_of_download,
    read_cohort,
    survivors_digest,
    write_cohort,
)
from fedtailor.privacy.masks.shares import combine, weights_of
from fedtailor.privacy.masks.site import MaskingSite, pair_stream_key
from masked_world import IDENTITIES, World, add, request, vectors


class WithoutAgreement(MaskingSite):
    """A site that believes the server who is in a sum."""

    def _check_agreed(self, context, survivors, agreed):
        pass


class Unconfirming(MaskingSite):
    """A site that believes the server who has masked for a sum."""

    def _check_confirmed(self, context, survivors, confirmed):
        pass


def refused(text):
    """Return the check that an attack is refused with a sentence."""
    return pytest.raises(RefusedError, match=text)


class Isolation:
    """Every honest holder is told other survivors; three sites of ten work with the server.

    In every set, which is large enough, are the victim and the partners, and one site more: all
    others are missing. So most holders give a share of the pair key of each other site, and all of
    them one of the victim's own mask.
    """

    PARTNERS = (7, 8, 9)

    def __init__(self, site):
        self.world = World(10, site=site)
        self.cohort = self.world.cohort()
        self.inputs = vectors(10)
        self.masked = self.world.mask(request(), self.cohort, self.inputs)
        self.context = self.world.context(request(), self.cohort)
        self.pair = {number: {} for number in range(10)}
        self.own = {number: {} for number in range(10)}

    def ask(self):
        for holder in range(10):
            if holder in self.PARTNERS:
                self.betray(holder)
            else:
                self.lie_to(holder)

    def betray(self, holder):
        """Take both shares from a partner."""
        for member in self.cohort:
            keys = self.world.keys[holder]
            if member.number == holder:
                (shares,) = keys.shares_for(0, [holder])
            else:
                sealed = self.world.bundles[member.number, 0].sealed[holder]
                channels = [channel.key for channel in self.world.channels]
                shares = keys.unseal_shares(member, sealed, channels)
            self.pair[member.number][holder] = shares.pair
            self.own[member.number][holder] = shares.own

    def lie_to(self, holder):
        """Ask an honest holder to open a sum that only it is told of."""
        extra = 1 + (holder - 1) % 6 if holder else 1
        survivors = {0, *self.PARTNERS, extra}
        sealed = self.world.sealed_for(holder, self.cohort)
        agreed = self.signatures(survivors)
        confirmed = self.world.confirmed(request(), self.cohort)
        shares = self.world.sites[holder].open(
            request(), self.cohort, survivors, sealed, confirmed, agreed
        )
        for number, share in shares.items():
            (self.own if number in survivors else self.pair)[number][holder] = share

    def signatures(self, survivors):
        """Return what the partners sign, which is anything."""
        digest = survivors_digest(self.world.session, self.context, survivors)
        return {number: self.world.keys[number].sign(digest) for number in self.PARTNERS}

    def value_of_victim(self):
        """Return the vector of site 0 from what the server has."""
        total = self.masked[0].copy()
        own = self.secret(self.own[0])
        add_key_stream(total, derive(own, self.context, "self", 0), sign=-1)
        for member in self.cohort[1:]:
            number = member.number
            if number in self.PARTNERS:
                secret = self.world.keys[number].pair_secret(0)
            else:
                secret = self.secret(self.pair[number])
            assert public_key(secret) == member.pair_key
            key = pair_stream_key(secret, number, self.cohort[0], self.context)
            add_key_stream(total, key, sign=-1)
        return total

    def secret(self, shares):
        holders = sorted(shares)[: self.world.session.threshold]
        assert len(holders) == self.world.session.threshold
        return combine(shares, weights_of(holders))


def test_other_survivors_for_every_holder_isolate_a_site_without_agreement():
    attack = Isolation(WithoutAgreement)
    attack.ask()
    assert (attack.value_of_victim() == attack.inputs[0]).all()


def test_other_survivors_for_every_holder_are_refused():
    attack = Isolation(MaskingSite)
    with refused("3 sites agree on who is in this sum, and 7 must"):
        attack.ask()


@pytest.fixture
def world():
    return World(7)


def masked_world(world, lost=()):
    """Return cohort and masked vectors of a first round."""
    cohort = world.cohort()
    return cohort, world.mask(request(), cohort, vectors(7), lost)


def test_signatures_of_too_few_sites_or_of_one_twice_or_of_another_sum(world):
    cohort, masked = masked_world(world, lost=(6,))
    survivors = set(masked)
    agreed = world.agree(request(), cohort, survivors, silent=(4, 5, 6))
    with refused("4 sites agree on who is in this sum, and 5 must"):
        world.open(request(), cohort, survivors, agreed)

    repeated = {**agreed, 4: agreed[0], 5: agreed[1], 99: agreed[2], -1: agreed[3]}
    with refused("4 sites agree"):
        world.open(request(), cohort, survivors, repeated)
    other = {number: world.keys[number].sign(b"other") for number in range(7)}
    with refused("0 sites agree"):
        world.open(request(), cohort, survivors, other)


def test_both_shares_of_one_bundle(world):
    cohort, _ = masked_world(world)
    everybody = set(range(7))
    world.open(request(), cohort, everybody)

    # Then the keys of site 6 as of one that is missing.
    without = everybody - {6}
    with refused("two different sums"):
        world.sites[0].agree(request(), cohort, without)
    agreed = {number: world.keys[number].sign(digest_of("x")) for number in range(7)}
    with refused("agree on who"):
        world.open(request(), cohort, without, agreed)


def test_both_shares_of_one_bundle_under_two_contexts(world):
    cohort, _ = masked_world(world)
    world.open(request(), cohort, set(range(7)))

    # A later round with the old keys of site 6, which works with the server, and new ones else.
    later = [*world.cohort(range(6), index=1), cohort[6]]
    masked = world.mask(request(2), later, vectors(7), silent=(6,))
    survivors = set(masked)
    agreed = world.agree(request(2), later, survivors, silent=(6,))
    with refused("the keys of site 6 were opened for something else"):
        world.open(request(2), later, survivors, agreed)


def test_two_sets_of_survivors(world):
    cohort, _ = masked_world(world)
    world.agree(request(), cohort, {0, 1, 2, 3, 4, 5})
    with refused("two different sums of round 1: tell the others"):
        world.agree(request(), cohort, {0, 1, 2, 3, 4})
    with refused("two different sums"):
        world.open(request(), cohort, set(range(7)))


def test_a_second_cohort_for_the_same_round(world):
    cohort, _ = masked_world(world)
    with refused("the keys of this site were used for another sum"):
        world.mask(request(), cohort[:6], vectors(7))
    with refused("answered with other sites"):
        world.mask(request(), world.cohort(range(6), index=1), vectors(7))
    with refused("answered with other sites"):
        world.agree(request(), world.cohort(range(6), index=1), set(range(5)))


def test_a_second_sum_of_a_round_after_the_first_was_opened(world):
    """The difference of two sums of a round, whose sites differ in one, would be its value."""
    cohort, masked = masked_world(world)
    answers = world.open(request(), cohort, set(range(7)))
    opened = unmask(
        world.session, request(), cohort, frozenset(masked), add(masked.values()), answers
    )
    assert (opened.total == add(vectors(7))).all()

    smaller = world.cohort(range(6), index=1)
    with refused("a sum of round 1 was opened already"):
        world.mask(request(attempt=1), smaller, vectors(7))


def test_a_second_sum_of_a_round_that_was_masked_before_the_first_was_opened(world):
    cohort, _ = masked_world(world)
    smaller = world.cohort(range(6), index=1)
    world.mask(request(attempt=1), smaller, vectors(7))
    world.open(request(), cohort, set(range(7)))
    with refused("another sum of round 1 was opened already"):
        world.open(request(attempt=1), smaller, set(range(6)))


def test_two_vectors_under_the_same_masks(world):
    """Their difference would be that of two uploads; another base state gives another one."""
    cohort, _ = masked_world(world)
    with refused("masked another vector for this sum"):
        world.mask(request(), cohort, vectors(7, seed=1))


def test_many_attempts_at_a_round(world):
    for attempt in range(3):
        world.mask(request(attempt=attempt), world.cohort(index=attempt), vectors(7))
    with refused("tried 3 times"):
        world.mask(request(attempt=3), world.cohort(index=3), vectors(7))


def test_an_earlier_round_after_a_later_one(world):
    world.mask(request(5), world.cohort(index=5), vectors(7))
    with refused("round 4 is over"):
        world.mask(request(4), world.cohort(index=4), vectors(7))


def test_a_foreign_key_in_the_cohort(world):
    cohort = world.cohort()
    foreign = cohort[2]._replace(pair_key=public_key(bytes(range(1, 33))))
    with refused("the keys of site 2 are not signed by it"):
        world.sites[0].mask(request(), [*cohort[:2], foreign, *cohort[3:]], vectors(7)[0])
    mine = cohort[0]._replace(pair_key=public_key(bytes(range(1, 33))))
    with refused("do not have this site with its own keys"):
        world.sites[0].mask(request(), [mine, *cohort[1:]], vectors(7)[0])
    with refused("do not have this site"):
        world.sites[0].mask(request(), cohort[1:], vectors(7)[0])


def test_an_invented_site(world):
    invented = World(8).cohort()[7]
    with refused("different ones of the roster"):
        world.sites[0].mask(request(), [*world.cohort(), invented], vectors(7)[0])
    with refused("different ones of the roster"):
        twice = [*world.cohort(), world.cohort()[3]]
        world.sites[0].mask(request(), twice, vectors(7)[0])


def test_a_key_that_two_sites_share(world):
    cohort = world.cohort()
    same = cohort[3]._replace(pair_key=cohort[2].pair_key)
    with refused("two sites of a sum have the same key"):
        world.sites[0].mask(request(), [*cohort[:3], same, *cohort[4:]], vectors(7)[0])


OTHER = [
    {"shared": digest_of_download(b"another model")},
    {"plan": digest_of("another plan")},
    {"layout": digest_of("another layout")},
    {"kind": "score"},
    {"round": 2},
]


def masked_with_another(world, change):
    """Return cohort and masked vectors; site 3 was asked for something else."""
    cohort = world.cohort()
    masked = world.mask(request(), cohort, vectors(7), silent=(3,))
    masked[3] = world.sites[3].mask(request()._replace(**change), cohort, vectors(7)[3])
    return cohort, masked


@pytest.mark.parametrize("change", OTHER)
def test_something_else_for_one_site(world, change):
    """A site that trained another model is in nobody's sum."""
    cohort, _ = masked_with_another(world, change)
    with refused("site 3 has not confirmed that it is in this sum"):
        world.open(request(), cohort, set(range(7)))
    if change.keys() & {"shared", "plan", "layout"}:
        with refused("answered with other sites, or another plan or model"):
            world.agree(request(), cohort, set(range(7)))


@pytest.mark.parametrize("change", OTHER)
def test_masks_for_something_else_do_not_cancel(change):
    world = World(7, site=Unconfirming)
    cohort, masked = masked_with_another(world, change)
    everybody = frozenset(range(7))
    answers = world.open(request(), cohort, everybody, silent=(3,))
    opened = unmask(world.session, request(), cohort, everybody, add(masked.values()), answers)
    assert not np.isin(opened.total, add(vectors(7))).any()


def test_another_threshold(world):
    other = World(7, colluding="none")
    assert other.session.threshold < world.session.threshold
    with refused("not signed"):
        world.sites[0].mask(request(), other.cohort(), vectors(7)[0])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_sum_of_few(world, size):
    with refused(f"over {size} sites; it must be over 4 or more"):
        world.sites[0].mask(request(), world.cohort(range(size)), vectors(7)[0])
    cohort, _ = masked_world(world)
    with refused(f"over {size} sites"):
        world.agree(request(), cohort, set(range(size)))


def test_a_site_that_wants_larger_sums():
    strict = World(7, smallest=6)
    with refused("it must be over 6 or more"):
        strict.sites[0].mask(request(), strict.cohort(range(5)), vectors(7)[0])


def test_replay_from_another_run(world):
    cohort, masked = masked_world(world)
    other = World(7)
    other.session = other.session._replace(run="f" * 32)
    site = MaskingSite(other.session, 0, world.keys[0], world.sites[0]._journal)
    with refused("not signed"):
        site.mask(request(9), cohort, vectors(7)[0])
    assert world.context(request(), cohort) != other.context(request(), cohort)
    assert masked


def test_a_late_vector_after_its_site_was_missing(world):
    """Its pair masks are known by then; its own mask is not, and nobody opens that."""
    cohort, masked = masked_world(world, lost=(6,))
    survivors = set(masked)
    agreed = world.agree(request(), cohort, survivors, silent=(6,))
    world.open(request(), cohort, survivors, agreed, silent=(6,))
    late = world.sites[6].mask(request(), cohort, vectors(7)[6])

    # Whoever has settled does not settle on another sum.
    assert late.any()
    with refused("two different sums"):
        world.agree(request(), cohort, set(range(7)), silent=(6,))


def test_a_site_that_was_said_to_be_missing_does_not_mask_afterwards(world):
    cohort, masked = masked_world(world, lost=(6,))
    world.agree(request(), cohort, set(masked))
    with refused("closed without this site"):
        world.sites[6].mask(request(), cohort, vectors(7)[6])


def test_a_site_that_is_said_to_have_answered_and_has_not(world):
    cohort, _ = masked_world(world, lost=(6,))
    with refused("said to have answered, and has not"):
        world.sites[6].agree(request(), cohort, set(range(7)))
    with refused("somebody is said to be in a sum who was not asked"):
        world.sites[0].agree(request(), world.cohort(range(6)), set(range(7)))


def test_too_few_shares(world):
    cohort, masked = masked_world(world)
    answers = world.open(request(), cohort, set(range(7)), silent=(0, 1))
    del answers[2]
    with pytest.raises(TooFewSharesError, match="4 of 5 needed sites"):
        unmask(world.session, request(), cohort, frozenset(masked), add(masked.values()), answers)


def test_sealed_shares_of_others_or_of_another_bundle(world):
    cohort, _ = masked_world(world)
    everybody = set(range(7))
    swapped = world.sealed_for(1, cohort)
    confirmed = world.confirmed(request(), cohort)
    shares = world.sites[0].open(request(), cohort, everybody, swapped, confirmed, {})
    assert [number for number, share in shares.items() if share is not None] == [0]

    world.cohort(index=1)
    other = {number: world.bundles[number, 1].sealed[2] for number in range(7)}
    shares = world.sites[2].open(request(), cohort, everybody, other, confirmed, {})
    assert [number for number, share in shares.items() if share is not None] == [2]

    bundle = world.bundles[3, 0]
    sealed = (*bundle.sealed[:4], bundle.sealed[5], bundle.sealed[4], bundle.sealed[6])
    with refused("the sealed shares of site 3 are not those it signed"):
        check_bundle(world.session, Bundle(bundle.member, sealed))


def test_channel_keys_of_others(world):
    channels = list(world.channels)
    other = channels[1]._replace(key=public_key(bytes(range(1, 33))))
    with refused("the channel key of site 1 is not signed by it"):
        check_channels(world.session, [channels[0], other, *channels[2:]])
    with refused("a channel key of every site"):
        check_channels(world.session, channels[:-1])

    # A site that lost its folder would have other keys.
    again = World(7)
    again.keys[2] = type(again.keys[2])(again.session, 2, IDENTITIES[2], bytes(32))
    channels[2] = again.keys[2].channel()
    with refused("other channel keys before"):
        world.sites[0].learn_channels(channels)
    with refused("other keys than when the run began"):
        world.sites[2].learn_channels(channels)


def test_a_member_with_a_key_of_low_order(world):
    """A site that works with the server, with a key whose masks everybody can make."""
    bundle = world.sites[6].bundles([5])[0]
    member = bundle.member._replace(pair_key=bytes(32))
    signature = world.keys[6].sign(member.signed_digest(world.session))
    member = member._replace(signature=signature)
    with refused("no key"):
        check_bundle(world.session, Bundle(member, bundle.sealed))
    cohort = [*world.cohort(range(6)), member]
    with refused("no key"):
        world.sites[0].mask(request(), cohort, vectors(7)[0])


def test_keys_used_again_after_a_journal_lost_its_last_lines(tmp_path):
    """The other sites remember for which sum they have opened the keys."""
    world = World(5, folder=tmp_path)
    cohort = world.cohort()
    world.mask(request(), cohort, vectors(5))
    world.open(request(), cohort, set(range(5)))
    path = tmp_path / "0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:-20])
    world.restart(0)

    later = [cohort[0], *world.cohort(range(1, 5), index=1)]
    world.mask(request(2), later, vectors(5))
    with refused("the keys of site 0 were opened for something else"):
        world.open(request(2), later, set(range(5)), silent=(0,))


class AnotherCohort:
    """The victim masks for a small cohort; all others are told of a large one, in which it is.

    In the large one, the other members of the small one are missing. Everybody signs that, but for
    the victim, who is not asked, and nobody works with the server.
    """

    def __init__(self, site):
        self.world = World(7, site=site)
        self.large = self.world.cohort()
        self.small = self.large[:4]
        self.input = vectors(7)[0]
        self.masked = self.world.sites[0].mask(request(), self.small, self.input)
        self.survivors = {0, 4, 5, 6}
        self.world.mask(request(), self.large, vectors(7), silent=range(4))

    def value_of_victim(self):
        """Return the vector of site 0 from what the others open."""
        world = self.world
        agreed = world.agree(request(), self.large, self.survivors, silent=[0])
        answers = world.open(request(), self.large, self.survivors, agreed, silent=[0])
        context = world.context(request(), self.small)
        secrets = {
            member.number: combine(
                {holder: shares[member.number] for holder, shares in answers.items()},
                weights_of(sorted(answers)[: world.session.threshold]),
            )
            for member in self.small
        }

        total = self.masked.copy()
        add_key_stream(total, derive(secrets[0], context, "self", 0), sign=-1)
        for member in self.small[1:]:
            key = pair_stream_key(secrets[member.number], member.number, self.small[0], context)
            add_key_stream(total, key, sign=-1)
        return total


def test_another_cohort_for_one_site_isolates_it_without_confirmations():
    attack = AnotherCohort(Unconfirming)
    assert (attack.value_of_victim() == attack.input).all()


def test_another_cohort_for_one_site_is_refused():
    attack = AnotherCohort(MaskingSite)
    with refused("site 0 has not confirmed that it is in this sum"):
        attack.value_of_victim()


class OldKeys:
    """A sum of round 1 is never opened; its keys are opened one by one in two later rounds.

    In round 2, the victim is said to be in the sum with its old keys, and others to be missing with
    theirs; in round 3, the rest is missing.
    """

    def __init__(self, site):
        self.world = World(7, site=site)
        self.inputs = vectors(7)
        self.first = self.world.cohort()
        self.masked = self.world.mask(request(), self.first, self.inputs)

    def value_of_victim(self):
        """Return the vector of site 0 in round 1."""
        fresh = self.world.cohort(index=1)
        second = [self.first[0], *fresh[1:4], *self.first[4:]]
        secrets = self.opened(2, second, {0, 1, 2, 3}, [1, 2, 3])
        third = [fresh[0], *self.first[1:4], *fresh[4:]]
        more = self.opened(3, third, {0, 4, 5, 6}, [0, 4, 5, 6])
        secrets.update({number: more[number] for number in (1, 2, 3)})

        context = self.world.context(request(), self.first)
        total = self.masked[0].copy()
        add_key_stream(total, derive(secrets[0], context, "self", 0), sign=-1)
        for member in self.first[1:]:
            key = pair_stream_key(secrets[member.number], member.number, self.first[0], context)
            add_key_stream(total, key, sign=-1)
        return total

    def opened(self, round, cohort, survivors, masking):
        """Return the secrets that honest sites open in a round."""
        world = self.world
        asked = request(round)
        for number in masking:
            world.sites[number].mask(asked, cohort, self.inputs[number])
        silent = set() if 0 in masking else {0}
        agreed = world.agree(asked, cohort, survivors, silent)
        answers = world.open(asked, cohort, survivors, agreed, silent)
        weights = weights_of(sorted(answers)[: world.session.threshold])
        return {
            number: combine({holder: answers[holder][number] for holder in answers}, weights)
            for number in range(world.count)
        }


def test_old_keys_in_later_rounds_isolate_a_site_without_confirmations():
    attack = OldKeys(Unconfirming)
    assert (attack.value_of_victim() == attack.inputs[0]).all()


def test_old_keys_in_later_rounds_are_refused():
    attack = OldKeys(MaskingSite)
    with refused("site 0 has not confirmed that it is in this sum"):
        attack.value_of_victim()


def test_a_site_that_seals_a_wrong_share_accuses_nobody(world):
    """A holder returns what it was sent; the site that made the share may be the one that lies."""
    cohort, masked = masked_world(world)
    answers = world.open(request(), cohort, set(range(7)))
    answers[1][6] = bytes(33)
    opened = unmask(
        world.session, request(), cohort, frozenset(masked), add(masked.values()), answers
    )
    assert (opened.total == add(vectors(7))).all()
    assert opened.liars == frozenset()


def test_a_holder_that_lies_about_most_sites_is_named(world):
    cohort, masked = masked_world(world)
    answers = world.open(request(), cohort, set(range(7)))
    for number in (0, 1, 2, 5):
        answers[1][number] = bytes(33)
    answers[3][2] = bytes(33)
    opened = unmask(
        world.session, request(), cohort, frozenset(masked), add(masked.values()), answers
    )
    assert (opened.total == add(vectors(7))).all()
    assert opened.liars == {1}


@pytest.mark.parametrize("number", [7, 2**32 - 1])
def test_a_member_beyond_the_roster(world, number):
    cohort, _ = masked_world(world)
    members = [*cohort[:6], cohort[6]._replace(number=number)]
    for survivors in ({0, 1, 2, 3}, {*range(6), number}, {0, 1, 2, 3, 10**6}):
        with refused("different ones of the roster"):
            world.sites[0].open(request(), members, survivors, {}, {}, {})
        with refused("different ones of the roster"):
            world.sites[0].agree(request(), members, survivors)
    with refused("who was not asked"):
        world.sites[0].open(request(), cohort, {0, 1, 2, 10**6}, {}, {}, {})


def test_texts_and_members_without_end():
    """They are refused before memory is taken for each."""
    session = World(3).session
    with refused("more than 4 texts"):
        split_texts(bytes(4 * 5), most=4)
    with refused("cut off"):
        split_texts(b"\0", most=4)
    member = World(3).cohort()[0]
    with refused("more sites than the roster has"):
        read_cohort(write_cohort([member] * 4), session)

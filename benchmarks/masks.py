"""What masks cost: one site, the server, and bytes, for 10 and 100 sites.

    python -m benchmarks.masks            # 1,000,000 numbers, 10 sites
    python -m benchmarks.masks 300000 --sites 100 --lost 10

Every time is the median of three. The sum is checked to the bit.
"""

import argparse
import secrets
import statistics
import time

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from fedtailor.privacy.masks.journal import Journal
from fedtailor.privacy.masks.keys import SiteKeys, write_bundles
from fedtailor.privacy.masks.primitives import digest_of, point_of
from fedtailor.privacy.masks.server import unmask
from fedtailor.privacy.masks.session import Session, SumRequest, write_cohort
from fedtailor.privacy.masks.site import MaskingSite
from fedtailor.privacy.options import colluding_of, threshold_of

REPEATS = 3


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--lost", type=int, default=2)
    arguments = parser.parse_args()
    measure(arguments.numbers, arguments.sites, arguments.lost)


def measure(numbers, count, lost):
    identities = [ec.generate_private_key(ec.SECP384R1()) for _ in range(count)]
    colluding = colluding_of(count, "third")
    session = Session(
        "0" * 32, tuple(map(point_of, identities)), threshold_of(count, colluding), colluding, 3
    )
    keys = [
        SiteKeys(session, number, identity, secrets.token_bytes(32))
        for number, identity in enumerate(identities)
    ]
    sites = [MaskingSite(session, number, one, Journal()) for number, one in enumerate(keys)]
    channels = [one.channel() for one in keys]
    for site in sites:
        site.learn_channels(channels)

    report("a bundle", timed(lambda: sites[0].bundles([0])))
    bundles = [site.bundles([0])[0] for site in sites]
    cohort = [bundle.member for bundle in bundles]
    request = SumRequest("train", 1, 0, digest_of("plan"), digest_of("layout"), digest_of("shared"))

    rng = np.random.default_rng(0)
    values = rng.integers(-(2**40), 2**40, numbers).astype("<u8")
    start = time.perf_counter()
    first = sites[0].mask(request, cohort, values)
    report("mask, with all signatures", time.perf_counter() - start)
    report("mask again", timed(lambda: sites[0].mask(request, cohort, values)))

    # All other sites have the same values.
    survivors = frozenset(range(count - lost))
    total = first.copy()
    for number in range(1, count - lost):
        total += sites[number].mask(request, cohort, values)
    report("add a vector", timed(lambda: np.add(total, first)))

    confirmed = {number: sites[number].confirm(request, cohort) for number in survivors}
    agreed = {}
    if lost:
        agreed = {
            number: site.agree(request, cohort, survivors) for number, site in enumerate(sites)
        }
    answers = {}
    for number, site in enumerate(sites):
        sealed = {member.number: bundles[member.number].sealed[number] for member in cohort}
        start = time.perf_counter()
        answers[number] = site.open(request, cohort, survivors, sealed, confirmed, agreed)
        if number == 0:
            report("open, one holder", time.perf_counter() - start)

    opened = unmask(session, request, cohort, survivors, total, answers)
    expected = values * np.uint64(len(survivors))
    assert (opened.total == expected).all()
    report(
        f"unmask, {lost} of {count} sites lost",
        timed(lambda: unmask(session, request, cohort, survivors, total, answers)),
    )
    print(
        f"bytes: vector {8 * numbers:,}, members of a sum {len(write_cohort(cohort)):,}, ", end=""
    )
    print(f"a bundle {len(write_bundles(bundles[:1])):,}, shares of a holder {33 * count:,}")


def timed(call):
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def report(what, seconds):
    print(f"{what:32} {1000 * seconds:9.1f} ms")


if __name__ == "__main__":
    main()

"""Keys and the generator: published answers, independence of the order of reading."""

import hashlib
import threading

import numpy as np
import pytest
import torch

from fedtailor.core import rng
from fedtailor.core.rng import Key, new_key, philox, plain, to_unit, words

ONES = 2**64 - 1
KNOWN = {
    "zeros": (
        (0, 0, 0, 0),
        (0, 0),
        "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b",
    ),
    "ones": (
        (ONES,) * 4,
        (ONES,) * 2,
        "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0",
    ),
    "digits of pi": (
        (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
        (0x452821E638D01377, 0xBE5466CF34E90C6C),
        "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6",
    ),
}
"""Counter, key and block of Philox4x64-10, from the known-answer tests of Random123 (Salmon et al.
2011)."""


def before(counter):
    """Return the 256-bit counter that precedes one: numpy counts up before it draws."""
    number = sum(word << (64 * place) for place, word in enumerate(counter)) - 1
    return tuple((number >> (64 * place)) & ONES for place in range(4))


@pytest.mark.parametrize(("counter", "key", "block"), KNOWN.values(), ids=list(KNOWN))
def test_known_answers(counter, key, block):
    assert [f"{word:016x}" for word in philox(before(counter), key, 4)] == block.split()


def test_the_counter_carries():
    """The block after counter (ONES, 0, 0, 0) is that of (0, 1, 0, 0)."""
    assert (
        philox((ONES - 1, 0, 0, 0), (1, 2), 8)[4:].tolist()
        == philox((ONES, 0, 0, 0), (1, 2), 4).tolist()
    )


def test_words_are_philox_of_the_key():
    """Counter words: block, step, round, client; key words: seed, purpose; negative numbers modulo
    2^64."""
    key = (7, 6, 5, 4, -3)
    assert words(key, 4).tolist() == philox((0, 4, 6, 5), (7, ONES - 2), 4).tolist()


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 17])
def test_a_longer_read_starts_with_a_shorter_one(count):
    key = plain(new_key(1, round=2, client=3, purpose="x"))
    assert words(key, count).tolist() == words(key, 40)[:count].tolist()
    assert len(words(key, count)) == count


@pytest.mark.parametrize("start", [0, 1, 4, 6, 15])
def test_reading_may_start_anywhere(start):
    key = plain(new_key(1))
    assert words(key, 9, start=start).tolist() == words(key, 30)[start : start + 9].tolist()


def test_reads_do_not_disturb_each_other():
    keys = [plain(new_key(seed)) for seed in range(3)]
    alone = [words(key, 5).tolist() for key in keys]
    assert [words(key, 5).tolist() for key in reversed(keys)] == alone[::-1]
    found = {}
    threads = [
        threading.Thread(
            target=lambda n=n: found.update({n: [words(keys[n], 5).tolist() for _ in range(200)]})
        )
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[n] == [alone[n]] * 200 for n in range(3))


def test_every_part_of_a_key_matters():
    keys = [
        new_key(0),
        new_key(1),
        new_key(0, round=1),
        new_key(0, client=1),
        new_key(0, purpose="a"),
        new_key(0).fold("a"),
        new_key(0).fold("b"),
        new_key(0).fold("a").fold("b"),
        new_key(0).fold("b").fold("a"),
        new_key(0).fold("a/b"),
        new_key(0).at(torch.tensor(1)),
        new_key(0).common("a"),
        new_key(1).common("a"),
    ]
    assert len({words(plain(key), 2).tobytes() for key in keys}) == len(keys)


def test_keys_are_the_same_for_ever():
    """A run must repeat on another machine and with another version: the derivation of keys is part
    of the format."""
    key = new_key(42, round=3, client=5, purpose="train").fold("order")
    assert plain(key)[:4] == (42, 3, 5, 0)
    assert key.purpose == 532223985530734855
    assert f"{words(plain(key), 1)[0]:016x}" == "bf586742019bb662"


def test_a_common_key_forgets_round_client_and_purpose():
    one = new_key(3, round=1, client=2, purpose="x").at(torch.tensor(9)).common("model")
    two = new_key(3).common("model")
    assert plain(one) == plain(two) != plain(new_key(3).fold("model"))


def test_a_key_is_a_value():
    key = new_key(3)
    folded = key.fold("a")
    assert (
        isinstance(key, Key)
        and plain(key) == plain(new_key(3))
        and plain(folded) == plain(key.fold("a"))
    )
    assert [field.dtype for field in key[:4]] == [torch.int64] * 4 and isinstance(key.purpose, int)
    assert -(2**63) <= key.purpose < 2**63
    assert plain(rng.join_key(key[:4], key.purpose)) == plain(key)


def test_keys_can_be_stacked():
    """Under vmap the fields are stacked; folding costs nothing per client and gives the same
    purpose."""
    clients = torch.arange(4)

    def one(client):
        key = new_key(1)._replace(client=client).fold("x")
        return key.client, torch.tensor(key.purpose)

    found, purposes = torch.func.vmap(one)(clients)
    assert torch.equal(found, clients)
    assert set(purposes.tolist()) == {new_key(1).fold("x").purpose}


def test_units_use_the_upper_53_bits():
    raw = np.array([0, 2**11 - 1, 2**11, 2**63, ONES], dtype=np.uint64)
    assert to_unit(raw).tolist() == [0.0, 0.0, 2.0**-53, 0.5, 1 - 2.0**-53]


def test_secret_words_are_shake_256_of_secret_and_key():
    key = new_key(3, round=2, client=5, purpose="noise")
    secret = bytes(range(32))
    where = "/".join(map(str, plain(key))).encode()
    raw = hashlib.shake_256(secret + where).digest(24)
    drawn = rng.secret_words(key, secret, 3)
    assert drawn.tolist() == [int.from_bytes(raw[8 * i : 8 * i + 8], "little") for i in range(3)]


def test_secret_normals_are_normal_and_follow_from_secret_and_key():
    key = new_key(0, purpose="noise")
    drawn = rng.noise(key, (100_001,), b"a" * 32)
    assert drawn.dtype == torch.float32
    assert float(drawn.mean()) == pytest.approx(0, abs=0.02)
    assert float(drawn.std()) == pytest.approx(1, abs=0.02)
    assert float(drawn.pow(4).mean()) == pytest.approx(3, abs=0.2)
    assert torch.equal(drawn, rng.noise(key, (100_001,), b"a" * 32))

    others = [
        rng.noise(key, (100_001,), b"b" * 32),
        rng.noise(key.fold("x"), (100_001,), b"a" * 32),
        rng.noise(key.at(torch.tensor(1)), (100_001,), b"a" * 32),
        rng.noise(key, (100_001,), b""),
    ]
    for other in others:
        assert abs(float((drawn * other).mean())) < 0.02

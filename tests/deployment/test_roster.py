"""Rosters: their numbers, their fingerprint, and files that are not rosters."""

import hashlib
import json
import math
import re

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedtailor.core.errors import ConfigError, DataError, RunError
from fedtailor.deployment.federation_folder import FederationFolder, Registered
from fedtailor.deployment.keys import make_node_key, parse_public_key, read_own_key
from fedtailor.deployment.roster import (
    RosterSite,
    SiteRoster,
    parse_fingerprint,
    read_roster,
    roster_of,
    spell,
    write_roster,
)

NAMES = ("berlin", "oslo", "porto", "riga", "turin", "ulm", "vigo", "wien", "york", "zug")
GOLDEN = "sha256:89194ab65420184dd977faea57d6a2c0"


def private_key(number, curve=None):
    return ec.derive_private_key(1000 + number, curve or ec.SECP384R1())


def key_line(number, curve=None):
    public = private_key(number, curve).public_key()
    form = serialization.PublicFormat.OpenSSH
    return public.public_bytes(serialization.Encoding.OpenSSH, form).decode()


def make_roster(count=5, colluding=1, smallest_sum=3):
    sites = []
    for number in range(count):
        key = parse_public_key(key_line(number).encode())
        sites.append(RosterSite(NAMES[number], key))
    return SiteRoster(tuple(sites), colluding, smallest_sum)


@pytest.fixture
def server(tmp_path):
    """Return a server with five registered sites, and one that never trains."""
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "federation.toml").write_text("")
    federation = FederationFolder(folder)
    for number in (3, 0, 4, 2, 1):
        federation.register(Registered(NAMES[number], key_line(number), False))
    federation.register(Registered("aarhus", key_line(9), True))
    return federation


def changed(path, change):
    """Write a roster to a path with a change of its record."""
    record = json.loads(make_roster().to_text())
    change(record)
    path.write_text(json.dumps(record))
    return path


@pytest.mark.parametrize(
    ("count", "colluding", "threshold"),
    [(3, 0, 2), (4, 1, 3), (5, 1, 4), (7, 2, 5), (10, 3, 7), (20, 6, 14), (50, 16, 34)],
)
def test_two_groups_that_open_a_sum_share_an_honest_site(
    server, monkeypatch, count, colluding, threshold
):
    registered = [Registered(f"s{number:02}", key_line(number), False) for number in range(count)]
    monkeypatch.setattr(server, "sites", lambda: registered)
    roster = roster_of(server)
    assert (roster.colluding, roster.threshold) == (colluding, threshold)
    assert 2 * roster.threshold > count + roster.colluding
    assert roster.fewest == max(3, colluding + 2)


def test_the_fingerprint_covers_all_that_a_roster_says():
    roster = make_roster()

    # Computed again, without anything of ours.
    parts = []
    for number in range(5):
        numbers = private_key(number).public_key().public_numbers()
        parts.append(bytes([2 + numbers.y % 2]) + numbers.x.to_bytes(48, "big"))
    parts += [name.encode() for name in NAMES[:5]]
    parts += [number.to_bytes(4, "little") for number in (1, 4, 3)]
    framed = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    assert roster.pin == "sha256:" + hashlib.sha256(b"roster\0" + framed).hexdigest()
    assert roster.pin.startswith(GOLDEN)

    others = [make_roster(4), make_roster(colluding=2), make_roster(smallest_sum=4)]
    first, second, *rest = roster.sites
    renamed = (first._replace(name="bergen"), second, *rest)
    exchanged = (first._replace(key=second.key), second._replace(key=first.key), *rest)
    others += [SiteRoster(sites, 1, 3) for sites in (renamed, exchanged)]
    assert len({one.pin for one in (roster, *others)}) == 6


def test_fingerprints_are_read_as_people_write_them():
    pin = make_roster().pin
    spelled = spell(pin)
    assert re.fullmatch("([0-9A-F]{4} ){15}[0-9A-F]{4}", spelled)
    assert spell(pin, short=True) == f"{spelled[:19]} ..."
    for text in (pin, spelled, spelled.lower(), spelled.replace(" ", ""), f" {spelled}\n"):
        assert parse_fingerprint(text) == pin
    for text in ("", spelled[:-1], spelled + "0", "sha256:", spelled[:-1] + "x"):
        assert parse_fingerprint(text) is None


def test_a_server_writes_the_sites_that_train(server, tmp_path):
    path = tmp_path / "roster.json"
    roster = roster_of(server)
    write_roster(path, roster, replace=False)
    assert read_roster(path) == roster == make_roster()
    write_roster(path, roster, replace=False)

    server.remove("turin")
    with pytest.raises(ConfigError, match=r"another roster .*--replace"):
        write_roster(path, roster_of(server), replace=False)
    assert read_roster(path) == roster
    write_roster(path, roster_of(server), replace=True)
    assert len(read_roster(path).sites) == 4

    # What is not a roster is never lost.
    path.write_text("the only copy")
    for replace in (False, True):
        with pytest.raises(DataError, match="is not overwritten"):
            write_roster(path, roster, replace=replace)
    assert path.read_text() == "the only copy"
    with pytest.raises(RunError, match="cannot write"):
        write_roster(tmp_path / "nowhere" / "roster.json", roster, replace=False)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", (1, 3)),
        ("colluding = 'none'", (0, 3)),
        ("colluding = 3", (3, 5)),
        ("colluding = 4", "over 6 sites at least .* 5 that train"),
        ("smallest_sum = 6", "over 6 sites at least"),
        ("colluding = 'None'\nsmallest_sum = 2", (0, 2)),
        ("colluding = -1", "privacy.colluding must be >= 0"),
        ("colluding = 'half'", "privacy.colluding must be"),
    ],
)
def test_federation_toml_says_how_strict_a_roster_is(server, options, expected):
    (server.path / "federation.toml").write_text(f"[privacy]\n{options}\n")
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected):
            roster_of(server)
    else:
        roster = roster_of(server)
        assert (roster.colluding, roster.fewest) == expected


def test_a_damaged_register_gives_no_roster(server):
    sites = json.loads((server.path / "sites.json").read_text())
    sites["sites"][0]["key"] = "ssh-ed25519 AAAA"
    (server.path / "sites.json").write_text(json.dumps(sites))
    with pytest.raises(DataError, match=r"the key of .* is not the public key of a site"):
        roster_of(server)


def set_first(key, value):
    return lambda record: record["sites"][0].update({key: value})


REWRITTEN = "not what 'fedtailor deploy roster' writes"
MOST_DIGITS = 10**4300 - 1
STRANGE = {
    "another format": (lambda record: record.update(format=2), REWRITTEN),
    "unknown field": (lambda record: record.update(leader="oslo"), REWRITTEN),
    "unknown field of a site": (set_first("role", "leader"), REWRITTEN),
    "missing field": (lambda record: record.pop("colluding"), REWRITTEN),
    "missing threshold": (lambda record: record.pop("threshold"), REWRITTEN),
    "missing name": (lambda record: record["sites"][0].pop("name"), REWRITTEN),
    "sites are no list": (lambda record: record.update(sites={}), REWRITTEN),
    "a site is no object": (lambda record: record["sites"].append("ulm"), REWRITTEN),
    "doubled name": (set_first("name", "oslo"), "2 sites are called oslo"),
    "doubled key": (set_first("key", key_line(1)), "berlin and oslo have the same key"),
    "wrong order": (lambda record: record["sites"].reverse(), "order of their names"),
    "strange name": (set_first("name", "\x1b[2J"), "the name of a site"),
    "number as name": (set_first("name", 7), REWRITTEN),
    "other curve": (set_first("key", key_line(0, ec.SECP256R1())), "not the public key of a site"),
    "no key": (set_first("key", "ecdsa-sha2-nistp384 AAAA"), "not the public key of a site"),
    "key that is no UTF-8": (set_first("key", "\ud800"), REWRITTEN),
    "comment of a key": (set_first("key", key_line(0) + " me"), REWRITTEN),
    "too low a threshold": (lambda record: record.update(threshold=3), REWRITTEN),
    "too many colluding": (
        lambda record: record.update(colluding=4, threshold=5),
        "a sum is over 6 at least",
    ),
    "sum of one": (lambda record: record.update(smallest_sum=1), "smallest_sum must be at least 2"),
    "sum of too many": (lambda record: record.update(smallest_sum=6), "a sum is over 6 at least"),
    "truth": (lambda record: record.update(colluding=True), REWRITTEN),
    "text": (lambda record: record.update(colluding="1"), REWRITTEN),
    "negative": (lambda record: record.update(colluding=-1, threshold=3), "colluding at least 0"),
    "fraction": (lambda record: record.update(threshold=4.0), REWRITTEN),
    "not finite": (lambda record: record.update(colluding=math.inf), "damaged"),
    "endless": (lambda record: record.update(smallest_sum=2**80), "must be at most 4294967295"),
    "a sum of thousands of digits": (
        lambda record: record.update(smallest_sum=10**4000),
        "must be at most 4294967295",
    ),
    "colluding of more digits than Python prints": (
        lambda record: record.update(colluding=MOST_DIGITS, threshold=(5 + MOST_DIGITS) // 2 + 1),
        "must be at most 4294967295",
    ),
    "no sites": (lambda record: record.update(sites=[], threshold=1), "it has 0 sites"),
}


@pytest.mark.parametrize(("change", "problem"), STRANGE.values(), ids=STRANGE)
def test_what_is_wrong_with_a_roster_is_one_sentence(tmp_path, change, problem):
    path = changed(tmp_path / "roster.json", change)
    with pytest.raises(DataError, match=problem) as error:
        read_roster(path)
    message = error.value.message
    assert "roster.json" in message and "\n" not in message and len(message) < 500
    assert "Error" not in message


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "damaged"),
        (b"\x80\x04N.", "damaged"),
        (b"[]", "damaged"),
        (b"[" * 100_000, "damaged"),
        (b'{"format": 1, "format": 1}', "the field 'format' is there twice"),
    ],
)
def test_what_is_no_roster_is_refused(tmp_path, raw, problem):
    path = tmp_path / "roster.json"
    path.write_bytes(raw)
    with pytest.raises(DataError, match=problem):
        read_roster(path)


def test_a_key_that_is_there_twice_in_a_site_is_refused(tmp_path):
    path = tmp_path / "roster.json"
    text = make_roster().to_text()
    path.write_text(text.replace('"name": "oslo",', '"name": "oslo", "name": "oslo",'))
    with pytest.raises(DataError, match="the field 'name' is there twice"):
        read_roster(path)


def test_the_own_key_is_read_from_the_private_one(tmp_path):
    made = make_node_key(tmp_path / "site.key")
    assert read_own_key(tmp_path / "site.key") == made and len(made.point) == 49

    encryption = serialization.NoEncryption()
    for number, curve in enumerate((ec.SECP256R1(), None)):
        form = serialization.PrivateFormat.OpenSSH if curve else serialization.PrivateFormat.PKCS8
        pem = private_key(0, curve).private_bytes(serialization.Encoding.PEM, form, encryption)
        (tmp_path / f"other{number}").write_bytes(pem)
        with pytest.raises(DataError, match="not the private key of a site"):
            read_own_key(tmp_path / f"other{number}")
    with pytest.raises(DataError, match="cannot read"):
        read_own_key(tmp_path / "nothing")

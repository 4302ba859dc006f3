"""What a site asks of secure sums: its section, the roster that it pins, the plans it refuses."""

import tomllib
from dataclasses import replace

import pytest

from fedtailor.core.errors import ConfigError, DataError, RunError
from fedtailor.deployment.agreed_study import allow_study
from fedtailor.deployment.init import init_site
from fedtailor.deployment.keys import make_node_key, read_own_key
from fedtailor.deployment.options import load_site
from fedtailor.deployment.roster import RosterSite, SiteRoster, write_roster
from fedtailor.deployment.site_check import check_site
from fedtailor.deployment.site_file import write_section, write_values
from fedtailor.deployment.site_privacy import SitePrivacy
from fedtailor.deployment.trust import acceptable_roster, pin_roster, pinned_roster
from fedtailor.privacy.options import PrivacyOptions
from sites import VALUES, World, divide_digits, write_arrays

PIN = "sha256:" + "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Return the public keys of four sites, by their names."""
    folder = tmp_path_factory.mktemp("keys")
    return {name: make_node_key(folder / name) for name in ("oslo", "porto", "riga", "turin")}


@pytest.fixture
def berlin(tmp_path, keys):
    """Return the folder of a site."""
    init_site(tmp_path / "berlin", "berlin", "data", "localhost:8000")
    return tmp_path / "berlin"


@pytest.fixture
def roster(berlin, keys):
    """Return a roster of five sites."""
    sites = [RosterSite("berlin", read_own_key(berlin / "site.key"))]
    sites += [RosterSite(name, key) for name, key in keys.items()]
    return SiteRoster(tuple(sites), 1, 3)


@pytest.fixture
def path(tmp_path, roster):
    """Return the file with that roster."""
    write_roster(tmp_path / "roster.json", roster, replace=False)
    return tmp_path / "roster.json"


def of_three(roster, smallest_sum=3):
    return SiteRoster(roster.sites[:3], 0, smallest_sum)


def add_options(folder, text):
    with (folder / "site.toml").open("a") as file:
        file.write(text)


def checked(folder):
    """Return what the check of a site says of its privacy."""
    (check,) = [check for check in check_site(folder) if check.what == "privacy"]
    return check


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rooster = ''", "did you mean 'roster'"),
        ("roster = '4F2A 91C0'", "privacy.roster must be sha256:"),
        (f"roster = '{PIN.upper()}'", "privacy.roster must be sha256:"),
        ("require_secure_sums = 1", "privacy.require_secure_sums must be true or false"),
        ("smallest_sum = 1", "privacy.smallest_sum must be >= 2"),
        ("colluding = 'all'", "privacy.colluding must be"),
        ("most_epsilon = -1", "privacy.most_epsilon must be >= 0"),
        ("most_delta = 0", "privacy.most_delta must be >= 1e-10"),
    ],
)
def test_mistakes_in_the_section_are_one_sentence(berlin, text, problem):
    add_options(berlin, f"[privacy]\n{text}\n")
    with pytest.raises(ConfigError, match=problem):
        load_site(berlin)


def test_the_section_is_read(berlin):
    text = f"""[privacy]
roster = "{PIN}"
require_secure_sums = true
smallest_sum = 4
colluding = 1
most_epsilon = 8
"""
    add_options(berlin, text)
    assert load_site(berlin).privacy == SitePrivacy(
        roster=PIN,
        require_secure_sums=True,
        smallest_sum=4,
        colluding=1,
        most_epsilon=8.0,
    )


PLANS = {
    "no demands": ({}, {}, ""),
    "no secure sums": ({"require_secure_sums": True}, {}, "the plan has no secure sums"),
    "no roster": ({}, {"secure_sums": True}, "this site trusts no roster"),
    "as asked": ({"roster": PIN, "require_secure_sums": True}, {"secure_sums": True}, ""),
    "a smaller sum": (
        {"roster": PIN},
        {"secure_sums": True, "smallest_sum": 2, "colluding": "none"},
        "the server asks for a sum over 2 sites; site.toml allows 3 or more.",
    ),
    "a smaller sum, where colluding sites make it larger": (
        {"roster": PIN},
        {"secure_sums": True, "smallest_sum": 2},
        "",
    ),
    "fewer colluding": (
        {"roster": PIN},
        {"secure_sums": True, "colluding": "none"},
        "the server allows for privacy.colluding = 0, .* asks for 1 or more",
    ),
    "more colluding": ({"roster": PIN}, {"secure_sums": True, "colluding": 2}, ""),
    "the site allows none": (
        {"roster": PIN, "colluding": "none"},
        {"secure_sums": True, "colluding": 0},
        "",
    ),
    "no noise": ({"most_epsilon": 8.0}, {}, "no differential privacy; .* epsilon of 8 or less"),
    "too much epsilon": (
        {"most_epsilon": 8.0},
        {"unit": "client", "epsilon": 9.0},
        "privacy.epsilon = 9; ",
    ),
    "unknown epsilon": (
        {"most_epsilon": 8.0},
        {"unit": "client", "noise": 9.0},
        "privacy.epsilon = 0; ",
    ),
    "little epsilon": ({"most_epsilon": 8.0}, {"unit": "client", "epsilon": 8.0}, ""),
    "a large delta": (
        {"most_epsilon": 8.0},
        {"unit": "example", "epsilon": 8.0, "delta": 1e-4},
        "privacy.delta = 0.0001; site.toml allows a delta of 1e-05 or less",
    ),
    "a large delta that is allowed": (
        {"most_epsilon": 8.0, "most_delta": 1e-4},
        {"unit": "example", "epsilon": 8.0, "delta": 1e-4},
        "",
    ),
}


@pytest.mark.parametrize(("site", "plan", "problem"), PLANS.values(), ids=PLANS)
def test_a_plan_must_be_as_strict_as_the_site(site, plan, problem):
    privacy = SitePrivacy(**site)
    if not problem:
        privacy.check_plan(PrivacyOptions(**plan), 5, trains=True)
        return
    with pytest.raises(ConfigError, match=problem):
        privacy.check_plan(PrivacyOptions(**plan), 5, trains=True)


def test_a_site_pins_a_roster_and_keeps_its_other_lines(berlin, path, roster):
    before = (berlin / "site.toml").read_text()
    assert pinned_roster(berlin, load_site(berlin)) is None
    assert acceptable_roster(berlin, path, replace=False) == roster
    assert (berlin / "site.toml").read_text() == before, "nothing is written yet"

    pin_roster(berlin, roster)
    assert pinned_roster(berlin, load_site(berlin)) == roster
    after = (berlin / "site.toml").read_text()
    lines = f'roster = "{roster.pin}"\nrequire_secure_sums = true\n'
    assert after == f"{before.rstrip()}\n\n[privacy]\n{lines}"

    # Once more, the same.
    pin_roster(berlin, acceptable_roster(berlin, path, replace=False))
    assert (berlin / "site.toml").read_text() == after


def test_a_site_that_allows_plans_without_secure_sums_still_does(berlin, roster):
    add_options(berlin, "[privacy]\nrequire_secure_sums = false\n")
    pin_roster(berlin, roster)
    options = load_site(berlin).privacy
    assert options.roster == roster.pin and not options.require_secure_sums


def test_another_roster_needs_a_word(berlin, path, roster):
    pin_roster(berlin, roster)
    other = replace(roster, colluding=2)
    write_roster(path, other, replace=True)
    words = "this site trusts the roster .* is .*: compare both with the other sites"
    with pytest.raises(ConfigError, match=words):
        acceptable_roster(berlin, path, replace=False)
    assert pinned_roster(berlin, load_site(berlin)) == roster
    pin_roster(berlin, acceptable_roster(berlin, path, replace=True))
    assert pinned_roster(berlin, load_site(berlin)) == other


def test_a_roster_must_have_this_site_with_its_own_key(berlin, path, roster, keys):
    def refused(sites, problem):
        write_roster(path, SiteRoster(tuple(sites), 1, 3), replace=True)
        with pytest.raises(DataError, match=problem):
            acceptable_roster(berlin, path, replace=False)

    own, *others = roster.sites
    refused(others, "berlin is not in it")
    refused([own._replace(name="bergen"), *others], "calls the key of this site bergen")
    refused([others[0]._replace(name="berlin"), *others[1:]], "its key of berlin is not that")

    (berlin / "site.key").unlink()
    write_roster(path, roster, replace=True)
    with pytest.raises(DataError, match=r"cannot read .*site.key"):
        acceptable_roster(berlin, path, replace=False)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("smallest_sum = 4", "the roster asks for a sum over 3 sites; site.toml allows 4 or more"),
        ("colluding = 2", "the roster allows for privacy.colluding = 1, .* 2 or more"),
        ("colluding = 1\nsmallest_sum = 2", ""),
    ],
)
def test_a_roster_must_be_as_strict_as_the_site(berlin, path, options, problem):
    add_options(berlin, f"[privacy]\n{options}\n")
    if not problem:
        acceptable_roster(berlin, path, replace=False)
        return
    with pytest.raises(ConfigError, match=problem):
        acceptable_roster(berlin, path, replace=False)


def test_the_check_of_a_site_says_whom_it_trusts(berlin, roster):
    assert checked(berlin) == (
        "privacy",
        True,
        "no roster is trusted: the server sees what this site alone sends",
    )

    add_options(berlin, "[privacy]\nrequire_secure_sums = false\n")
    pin_roster(berlin, roster)
    check = checked(berlin)
    assert check.ok and "of 5 sites is trusted" in check.text
    assert "4 of 5 sites must answer; 1 may work with the server." in check.text
    assert "No site may miss" not in check.text and "are allowed" in check.text

    text = (berlin / "site.toml").read_text()
    (berlin / "site.toml").write_text(text.replace("require_secure_sums = false\n", ""))
    pin_roster(berlin, of_three(roster))
    check = checked(berlin)
    assert check.ok and "No site may miss a round: the sum of 2 is refused." in check.text
    assert check.text.endswith("Plans without secure sums are refused.")

    add_options(berlin, "smallest_sum = 2\n")
    pin_roster(berlin, of_three(roster, smallest_sum=2))
    text = checked(berlin).text
    assert "each of the two knows the other's value" in text and "No site may miss" not in text


def test_the_check_of_a_site_finds_a_roster_that_is_not_the_pinned_one(berlin, roster):
    add_options(berlin, "\n[privacy]\nrequire_secure_sums = true\n")
    assert not checked(berlin).ok and "no roster is trusted" in checked(berlin).text

    pin_roster(berlin, roster)
    assert checked(berlin).ok
    write_roster(berlin / "roster.json", replace(roster, colluding=2), replace=True)
    assert not checked(berlin).ok and "site.toml trusts the roster" in checked(berlin).text
    (berlin / "roster.json").unlink()
    assert not checked(berlin).ok and "cannot read" in checked(berlin).text


TOML = {
    "comments": (
        "a = 1\n\n# Of privacy.\n[privacy]\nsmallest_sum = 4 # mine\n[policy]\n# Ours.\nb = 2\n",
        "# mine\n",
        '# mine\nroster = "X"\n',
    ),
    "an older value": (
        '[privacy]  # ours\nroster = "old"\nsmallest_sum = 4\n',
        'roster = "old"',
        'roster = "X"',
    ),
    "a header without an end": ("a = 1\n[ privacy ]", "[ privacy ]", '[ privacy ]\nroster = "X"\n'),
    "lines of another system": (
        'a = 1\r\n[privacy]\r\nroster = ""\r\n[policy]\r\n',
        'roster = ""',
        'roster = "X"',
    ),
    "a text that looks like a section": (
        'a = """\n[policy]\n"""\n',
        '"""\n[policy]\n"""\n',
        '"""\n[policy]\n"""\n\n[privacy]\nroster = "X"\n',
    ),
}


@pytest.mark.parametrize(("text", "old", "new"), TOML.values(), ids=TOML)
def test_one_line_is_written_and_the_others_stay(tmp_path, text, old, new):
    path = tmp_path / "site.toml"
    path.write_bytes(text.encode())
    write_values(path, "privacy", {"roster": "X"}, missing={})
    assert path.read_bytes().decode() == text.replace(old, new)
    assert tomllib.loads(path.read_bytes().decode())["privacy"]["roster"] == "X"


SECTIONS = [
    "a = 1\n\n# Mine.\n[policy]\nb = 2\n[policy.study]\nc = 3\n[privacy]\nd = 4\n",
    "[policy.study]\nc = 3\n[privacy]\nd = 4\n[policy]\nb = 2\n",
    "policy = {b = 2}\nprivacy = {d = 4}\n",
    "policy.study.c = 3\npolicy.b = 2\nprivacy.d = 4\n",
    "[privacy]\nd = 4",
]


@pytest.mark.parametrize("text", SECTIONS)
def test_the_values_of_a_section_are_replaced(tmp_path, text):
    path = tmp_path / "site.toml"
    path.write_text(text)
    values = {"b": 5, "span": [1, 2], "study": {"e": 6}}
    write_section(path, "policy", values)
    written = path.read_text()
    assert tomllib.loads(written) == {**tomllib.loads(text), "policy": values}
    assert ("# Mine.\n[policy]" in written) == ("# Mine." in text)


@pytest.mark.parametrize("text", SECTIONS)
def test_a_value_is_written_however_its_section_is(tmp_path, text):
    path = tmp_path / "site.toml"
    path.write_text(text)
    write_values(path, "privacy", {"roster": "X"}, missing={})
    assert tomllib.loads(path.read_text()) == {
        **tomllib.loads(text),
        "privacy": {"d": 4, "roster": "X"},
    }


def write_sites(world):
    parts = divide_digits(rows=20)
    return world.write(lambda folder, name: write_arrays(folder, *parts[name]))


def test_an_agreed_study_leaves_the_pinned_roster(tmp_path):
    training = {**VALUES["training"], "smallest_batch": 10}
    write_sites(World(tmp_path, names=("clinic",), values={**VALUES, "training": training}))
    clinic = tmp_path / "sites" / "clinic"
    text = (
        f'name = "clinic"\ndata = "data"\n[policy]\nsplit_seed = 42\n[privacy]\nroster = "{PIN}"\n'
    )
    (clinic / "site.toml").write_text(text)
    allow_study(clinic, tmp_path / "server" / "federation.toml")
    options = load_site(clinic)
    assert options.privacy.roster == PIN and options.policy.study


def test_sites_refuse_plans_that_protect_them_less(tmp_path):
    world = write_sites(World(tmp_path))
    add_options(tmp_path / "sites" / "clinic", "[privacy]\nrequire_secure_sums = true\n")
    with pytest.raises(RunError, match="site 'clinic' refuses: the plan has no secure sums"):
        world.serve()

"""What a person sees of sites that may not connect, and of sites that do not fit together: both
values, in words."""

import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower': make test-sites")

from fedtailor import __version__
from fedtailor.deployment.federation_folder import read_attendance
from fedtailor.deployment.keys import make_node_key, make_server_keys
from real_sites import PROGRAMS, Command, Deployment, free_port, left_of
from sites import VALUES, World, divide_digits, write_arrays
from waiting import wait_for

NAMES = ("clinic", "practice")
DATA = divide_digits(NAMES, rows=40)
DEADLINE = {"deadline": 600.0, "resend": 10.0}
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    values = {**VALUES, "deploy": DEADLINE}
    world = World(tmp_path_factory.mktemp("refusals"), names=NAMES, values=values)
    world.write(lambda folder, name: write_arrays(folder, *DATA[name]))
    made = Deployment(world)
    made.start_sites("clinic")
    yield made
    made.stop()


def serve_and_wait_for_practice(deployment):
    """Start the server, and wait until all that it needs is the site 'practice'."""
    if deployment.serving is not None:
        deployment.serving.stop()
    (deployment.server / "attendance.json").unlink(missing_ok=True)
    deployment.serve()

    def waits():
        seen = read_attendance(deployment.server)
        return seen and seen["clinic"]["heard"] and seen["practice"]["waiting_since"]

    wait_for(waits, explain=deployment.tails)


@pytest.fixture(scope="module")
def waiting(deployment):
    """Return a deployment whose server waits for the site 'practice'."""
    serve_and_wait_for_practice(deployment)
    return deployment


@pytest.fixture
def stranger(waiting, tmp_path):
    """Return the folder of a site with a key of its own, which is not registered."""
    folder = tmp_path / "stranger"
    (folder / "data").mkdir(parents=True)
    for name in ("site.toml", "ca.crt"):
        shutil.copy(waiting.folder("practice") / name, folder / name)
    make_node_key(folder / "site.key")
    return folder


def started(folder, *arguments):
    """Start a site, and return the command."""
    return Command(arguments or ("-m", "fedtailor", "site", "start", folder), folder / "output.log")


def refused(command, text):
    """Assert that a command says a text, and that nothing of it is left after Ctrl-C."""
    seconds = command.wait_for_text(text, 120)
    print(f"{seconds:.1f} s: {command.text.splitlines()[-1]}")
    command.stop()
    assert left_of(command.log.parent) == []


def test_a_site_whose_key_is_not_registered_is_told_so(stranger):
    refused(
        started(stranger),
        "or the key is not registered (`fedtailor deploy add`)",
    )


def test_a_site_whose_key_is_in_use_is_told_so(waiting, stranger):
    shutil.copy(waiting.folder("clinic") / "site.key", stranger / "site.key")
    refused(started(stranger), "or in use by another process")


def test_a_site_with_another_ca_is_told_so(stranger):
    make_server_keys(stranger / "other", ["localhost"])
    shutil.copy(stranger / "other" / "ca.crt", stranger / "ca.crt")
    refused(
        started(stranger),
        "the server's certificate is not signed by this site's CA; copy ca.crt again",
    )


def test_a_site_without_a_key_does_not_start(stranger):
    (stranger / "site.key").unlink()
    command = started(stranger)
    assert command.wait(60) == 3
    assert "site.key' is missing" in command.text


def test_a_node_without_a_key_cannot_connect(waiting, stranger):
    program = Path(sys.executable).parent / "flower-supernode"
    options = (
        "--superlink",
        f"localhost:{waiting.port}",
        "--root-certificates",
        stranger / "ca.crt",
    )
    refused(started(stranger, program, *options, "--port", str(free_port())), "[code: 2001]")


def write_larger(folder):
    """Double the sides of the pictures of a site."""
    x, y = DATA["practice"]
    shutil.rmtree(folder / "data" / "practice")
    write_arrays(folder / "data" / "practice", x.repeat(2, axis=1).repeat(2, axis=2), y)


def replace_in_options(before, after):
    """Return a change of ``site.toml``."""

    def change(folder):
        path = folder / "site.toml"
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))

    return change


def name_other_classes(folder):
    """Give the classes of a site other names."""
    path = folder / "data" / "practice" / "train.npz"
    x, y = DATA["practice"]
    np.savez(path, x=x, y=y, class_names=np.array([f"class {label}" for label in range(10)]))


def write_version(folder):
    """Give the site another version of fedtailor."""
    (folder / "version.txt").write_text("0.0.1")


MISFITS = {
    "name": (
        replace_in_options('name = "practice"', 'name = "hospital"'),
        "the site that is registered as 'practice' calls itself 'hospital'",
    ),
    "version": (
        write_version,
        f"fedtailor is {__version__} there and 0.0.1 here: both sides need the same",
    ),
    "plan": (
        replace_in_options('data = "data"', 'data = "data"\nalgorithms = ["scaffold"]'),
        "site 'practice' refuses: its site.toml does not allow 'fedavg'. Allowed algorithms: "
        "scaffold",
    ),
    "shape": (
        write_larger,
        "differ in shape: 'clinic' has [1, 8, 8], and 'practice' has [1, 16, 16]",
    ),
    "classes": (
        name_other_classes,
        "that the model does not know. Its classes are '0', '1', '2', '3', '4', '5', '6', '7',",
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_site_that_does_not_fit_ends_the_start_with_both_values(deployment, tmp_path, misfit):
    change, message = MISFITS[misfit]
    if deployment.serving is not None:
        deployment.serving.stop()
    classes = {"classes": [str(label) for label in range(10)]} if misfit == "classes" else {}
    deployment.configure(deploy={**DEADLINE, **classes})
    folder = deployment.folder("practice")
    shutil.copytree(folder / "data", tmp_path / "data")
    shutil.copy(folder / "site.toml", tmp_path)
    change(folder)
    if "practice" not in deployment.sites:
        deployment.start_site("practice", PROGRAMS / "start_site.py", folder)
    else:
        deployment.kill("practice", "resident_site.py")  # it is started again, and reads its files
    try:
        serving = deployment.serve()
        serving.wait_for_text("2 sites are registered")
        begun = time.monotonic()
        code = serving.wait(180)
        print(f"{time.monotonic() - begun:.1f} s: {serving.text.splitlines()[-1]}")
        assert message in serving.text
        assert code in (3, 4, 5)
        assert deployment.processes("server") == []
        assert not deployment.run().exists()
    finally:
        shutil.rmtree(folder / "data")
        shutil.copytree(tmp_path / "data", folder / "data")
        shutil.copy(tmp_path / "site.toml", folder)
        (folder / "version.txt").unlink(missing_ok=True)

"""What sites have done wrong: the server and a command may change it at once."""

import threading

import pytest

from fedtailor.deployment.conduct import Conduct, allow, read_offences
from fedtailor.deployment.federation_folder import FederationFolder


@pytest.fixture
def folder(tmp_path):
    """Return the folder of a server."""
    (tmp_path / "federation.toml").touch()
    return tmp_path


def test_what_is_noted_while_a_command_forgets_a_site_is_kept(folder):
    conduct = Conduct(folder, "0001", ["Oslo", "Lima"])
    conduct.note(0, "train", 1, "it is not JSON")
    noting = threading.Thread(target=conduct.note, args=(1, "train", 1, "it is too large"))

    # The server notes something in the middle of the command's change.
    with FederationFolder(folder).changing():
        noting.start()
        noting.join(0.2)
        assert list(read_offences(folder)) == ["Oslo"]

    noting.join()
    assert allow(folder, "Oslo") == 1
    assert list(read_offences(folder)) == ["Lima"]

"""Keys and certificates: who may read them, for whom they hold, and what is none."""

import ssl
import subprocess

import pytest

from fedtailor.core.errors import ConfigError, DataError, RunError
from fedtailor.deployment import keys


def mode(path):
    return path.stat().st_mode & 0o777


def handshake(folder, host, authority=None):
    """Connect a client to a server in memory, with the files of a folder."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    client = ssl.create_default_context(cafile=str((authority or folder) / "ca.crt"))
    up = ssl.MemoryBIO()
    down = ssl.MemoryBIO()
    left = client.wrap_bio(down, up, server_hostname=host)
    right = server.wrap_bio(up, down, server_side=True)
    waiting = [left, right]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    assert waiting == []


def test_certificates_hold_for_the_hosts_and_this_machine_only(tmp_path):
    keys.make_server_keys(tmp_path, ["fl.example.org", "192.0.2.7"])
    for host in ("fl.example.org", "192.0.2.7", "127.0.0.1", "localhost"):
        handshake(tmp_path, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, "other.example.org")
    keys.make_server_keys(tmp_path / "other", [])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, "localhost", authority=tmp_path / "other")


def test_private_keys_are_private_and_never_overwritten(tmp_path):
    keys.make_server_keys(tmp_path, [])
    assert mode(tmp_path / "ca.key") == mode(tmp_path / "server.key") == 0o600
    with pytest.raises(RunError, match="never overwritten"):
        keys.make_server_keys(tmp_path, [])
    keys.make_node_key(tmp_path / "node")
    assert mode(tmp_path / "node") == 0o600
    (tmp_path / "node").unlink()
    with pytest.raises(RunError, match="never overwritten"):
        keys.make_node_key(tmp_path / "node")


def test_days_left(tmp_path):
    keys.make_server_keys(tmp_path, [])
    assert keys.SERVER_DAYS - 1 < keys.days_left(tmp_path / "server.pem") <= keys.SERVER_DAYS
    assert keys.AUTHORITY_DAYS - 1 < keys.days_left(tmp_path / "ca.crt") <= keys.AUTHORITY_DAYS
    with pytest.raises(DataError, match="not a certificate"):
        keys.days_left(tmp_path / "server.key")
    with pytest.raises(DataError, match="cannot read"):
        keys.days_left(tmp_path / "none")


def test_a_renewed_certificate_needs_nothing_new_at_the_sites(tmp_path):
    keys.make_server_keys(tmp_path, ["old.example.org"])
    authority = (tmp_path / "ca.crt").read_bytes()
    before = (tmp_path / "server.pem").read_bytes()
    keys.renew_server_certificate(tmp_path, ["new.example.org"])
    assert (tmp_path / "ca.crt").read_bytes() == authority
    assert (tmp_path / "server.pem").read_bytes() != before
    handshake(tmp_path, "new.example.org")
    (tmp_path / "ca.key").write_text("damaged")
    with pytest.raises(DataError):
        keys.renew_server_certificate(tmp_path, [])


def test_on_a_full_disk_the_old_key_stays(tmp_path, monkeypatch):
    keys.make_server_keys(tmp_path, ["example.org"])

    def no_space(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(RunError, match="No space"):
        keys.renew_server_certificate(tmp_path, ["example.org"])
    handshake(tmp_path, "example.org")
    assert mode(tmp_path / "server.key") == 0o600


@pytest.mark.parametrize("host", ["a:8000", "", "ä.org", "a" * 64])
def test_what_is_no_host_is_refused(tmp_path, host):
    with pytest.raises(ConfigError):
        keys.make_server_keys(tmp_path, [host])
    assert list(tmp_path.iterdir()) == []


def test_fingerprints_are_those_of_ssh(tmp_path):
    made = keys.make_node_key(tmp_path / "node")
    assert keys.read_public_key(tmp_path / "node.pub") == made
    (tmp_path / "node.pub").write_text(f"{made.text} somebody@site\n")
    assert keys.read_public_key(tmp_path / "node.pub") == made, "the comment does not count"
    try:
        done = subprocess.run(
            ["ssh-keygen", "-l", "-f", tmp_path / "node.pub"], capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("no ssh-keygen here")
    assert made.fingerprint in done.stdout


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMhEbwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        b"ecdsa-sha2-nistp384",
        b"ecdsa-sha2-nistp384 AAAA",
        b"ecdsa-sha2-nistp384 !!!!",
        b"-----BEGIN OPENSSH PRIVATE KEY-----\n",
        b"x" * 5000,
    ],
)
def test_what_is_no_public_key_is_refused(tmp_path, content):
    path = tmp_path / "key.pub"
    path.write_bytes(content)
    with pytest.raises(DataError):
        keys.read_public_key(path)


def test_two_keys_in_a_file_are_refused(tmp_path):
    made = keys.make_node_key(tmp_path / "node")
    (tmp_path / "node.pub").write_text(f"{made.text}\n{made.text}\n")
    with pytest.raises(DataError, match="one public key"):
        keys.read_public_key(tmp_path / "node.pub")
    (tmp_path / "node.pub").write_text(made.text[:-20])
    with pytest.raises(DataError, match="damaged"):
        keys.read_public_key(tmp_path / "node.pub")

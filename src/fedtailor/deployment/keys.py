"""Keys and certificates: an authority and a certificate for the server, a key for each site.

All keys are elliptic-curve keys (P-384). A certificate is valid from a day before it was made,
because clocks differ. The package ``cryptography`` comes with Flower.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedtailor.core.atomic import write_private, write_whole
from fedtailor.core.errors import DataError, RunError
from fedtailor.core.options import wrong_value
from fedtailor.core.reading import read_file

AUTHORITY_DAYS = 3650
"""Days for which the certificate authority is valid."""
SERVER_DAYS = 825
"""Days for which a server certificate is valid; some systems accept no more."""

_KIND = "ecdsa-sha2-nistp384"
_CURVE = "secp384r1"
_LARGEST_FILE = 1024**2
"""Bytes of a file with a key or a certificate."""
_LARGEST_PUBLIC_KEY = 4096


class PublicKey(NamedTuple):
    """The public key of a site."""

    text: str
    """In OpenSSH's form, without the comment."""
    fingerprint: str
    """As ``ssh-keygen -l`` prints it."""
    point: bytes
    """The point of the curve, compressed, in the form of X9.62: 49 bytes."""


def make_server_keys(folder: Path, hosts: Sequence[str]) -> None:
    """Make a certificate authority and a server certificate, as files of a folder.

    ``ca.crt`` goes to the sites. ``ca.key``, ``server.pem`` and ``server.key`` stay on the server;
    the keys have the mode 0600.

    Args:
        folder: is made if needed.
        hosts: names and addresses under which sites reach the server; this machine's own are added.

    Raises:
        ConfigError: a host is not a name or an address.
        RunError: one of the files exists.
    """
    names = _alternative_names(hosts)
    _refuse_existing(*(folder / name for name in ("ca.crt", "ca.key", "server.pem", "server.key")))

    key = ec.generate_private_key(ec.SECP384R1())

    # It signs itself, and it is trusted because a person has carried ca.crt to the site.
    subject = _name("fedtailor certificate authority")
    builder = _certificate(subject, subject, key, AUTHORITY_DAYS, is_authority=True)

    folder.mkdir(parents=True, exist_ok=True)
    write_private(folder / "ca.key", _private_text(key))
    _write_certificate(folder / "ca.crt", builder, key)
    _sign_server(folder, names, subject, key)


def renew_server_certificate(folder: Path, hosts: Sequence[str]) -> None:
    """Replace the server's certificate and key; the authority stays, so sites need nothing new.

    Raises:
        ConfigError: a host is not a name or an address.
        DataError: the files of the authority are missing or damaged.
    """
    names = _alternative_names(hosts)
    certificate = _load_certificate(folder / "ca.crt")
    path = folder / "ca.key"
    content = read_file(path, limit=_LARGEST_FILE)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:
        message = f"'{path}' is not a private key without a password."
        raise DataError(message, path=path) from error

    # A certificate by another key would lock all sites out.
    if (
        not isinstance(key, ec.EllipticCurvePrivateKey)
        or key.public_key() != certificate.public_key()
    ):
        raise DataError(f"'{path}' and ca.crt do not belong together.", path=path)

    _sign_server(folder, names, certificate.subject, key)


def make_node_key(path: Path) -> PublicKey:
    """Make the key of a site: a private key with mode 0600, and ``PATH.pub`` for the server.

    Raises:
        RunError: one of the files exists.
    """
    public_path = path.with_name(f"{path.name}.pub")
    _refuse_existing(path, public_path)

    key = ec.generate_private_key(ec.SECP384R1())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, _private_text(key, serialization.PrivateFormat.OpenSSH))
    public = _public_key(key.public_key())
    write_whole(public_path, public.text + "\n")
    return public


def read_public_key(path: Path) -> PublicKey:
    """Read and check the public key of a site.

    Raises:
        DataError: the file cannot be read, or is not one public key of the right kind.
    """
    content = read_file(path, limit=_LARGEST_FILE)
    lines = [line for line in content.splitlines() if line.strip()]
    if len(lines) != 1:
        message = f"'{path}' must hold one public key, on one line."
        raise DataError(message, path=path, got=f"{len(lines)} lines")

    key = parse_public_key(lines[0])
    if key is None:
        hint = "'fedtailor site init' makes one, site.key.pub"
        message = f"'{path}' is damaged, or not the public key of a site: {hint}."
        raise DataError(message, path=path, allowed=_KIND, got=str(lines[0][:60]))

    return key


def parse_public_key(line: bytes) -> PublicKey | None:
    """Return the public key of a site from a line of OpenSSH; None if it is none."""
    if len(line) > _LARGEST_PUBLIC_KEY:
        return None

    try:
        key = serialization.load_ssh_public_key(line)
    except (ValueError, UnsupportedAlgorithm):
        return None

    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != _CURVE:
        return None
    return _public_key(key)


def read_own_key(path: Path) -> PublicKey:
    """Return the public key that belongs to the private key of a site.

    Raises:
        DataError: the file cannot be read, or is not the private key of a site.
    """
    return _public_key(read_private_key(path).public_key())


def read_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key of a site.

    Raises:
        DataError: the file cannot be read, or is not the private key of a site.
    """
    content = read_file(path, limit=_LARGEST_FILE)
    try:
        key = serialization.load_ssh_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _no_private_key(path) from error

    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != _CURVE:
        raise _no_private_key(path)
    return key


def days_left(certificate: Path) -> float:
    """Return the days until a certificate ends; negative if it has ended.

    Raises:
        DataError: the file cannot be read, or is not a certificate.
    """
    left = _load_certificate(certificate).not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return float(left / datetime.timedelta(days=1))


def _sign_server(
    folder: Path,
    names: x509.SubjectAlternativeName,
    authority: x509.Name,
    key: ec.EllipticCurvePrivateKey,
) -> None:
    """Write a new key of the server, and its certificate by the authority with this key."""
    server = ec.generate_private_key(ec.SECP384R1())
    builder = _certificate(
        _name("fedtailor server"), authority, server, SERVER_DAYS, is_authority=False
    )
    for extension in (
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()),
        names,
    ):
        builder = builder.add_extension(extension, critical=False)

    write_private(folder / "server.key", _private_text(server))
    _write_certificate(folder / "server.pem", builder, key)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    days: int,
    *,
    is_authority: bool,
) -> x509.CertificateBuilder:
    """Return a certificate for a key that is not signed yet."""
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    length = 0 if is_authority else None

    # An authority signs certificates and nothing else, a server proves with its key who it is.
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + days * day)
        .add_extension(x509.BasicConstraints(is_authority, length), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _write_certificate(
    path: Path, builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey
) -> None:
    certificate = builder.sign(key, hashes.SHA384())
    write_whole(path, bytes(certificate.public_bytes(serialization.Encoding.PEM)))


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])


def _alternative_names(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    """Return the names and addresses for which a certificate is valid."""
    # This machine's own names too: the server asks itself for its health.
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys([*hosts, "127.0.0.1", "localhost"]):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            _check_host(host)
            names.append(x509.DNSName(host))

    return x509.SubjectAlternativeName(names)


def _check_host(host: str) -> None:
    labels = host.split(".")
    is_plain = host.isascii() and len(host) <= 253
    if not is_plain or not all(
        label.replace("-", "a").isalnum() and len(label) <= 63 for label in labels
    ):
        allowed = "a name or an address, without a port, such as fl.example.org"
        raise wrong_value("host", allowed, host)


def _private_text(
    key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat | None = None
) -> bytes:
    form = form or serialization.PrivateFormat.PKCS8
    encryption = serialization.NoEncryption()
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))


def _public_key(key: ec.EllipticCurvePublicKey) -> PublicKey:
    """Describe a public key; written again, it has no comment."""
    digest = serialization.ssh_key_fingerprint(key, hashes.SHA256())
    fingerprint = "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
    forms = serialization.PublicFormat
    text = key.public_bytes(serialization.Encoding.OpenSSH, forms.OpenSSH).decode()
    point = key.public_bytes(serialization.Encoding.X962, forms.CompressedPoint)
    return PublicKey(text, fingerprint, point)


def _no_private_key(path: Path) -> DataError:
    hint = "'fedtailor site init' makes one, site.key"
    message = f"'{path}' is damaged, or not the private key of a site: {hint}."
    return DataError(message, path=path, allowed=_KIND)


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(read_file(path, limit=_LARGEST_FILE))
    except ValueError as error:
        raise DataError(f"'{path}' is not a certificate in PEM form.", path=path) from error


def _refuse_existing(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            message = f"'{path}' exists already, and a key is never overwritten."
            raise RunError(message, path=path)

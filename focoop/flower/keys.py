"""Keys of a federation: its own certificate authority, the server's certificate, one key per site.

ca.crt, ca.key                   the authority; ca.key signs, and leaves this folder never
server.pem, server.key           for the SuperLink
sites/NAME/{key, key.pub, ca.crt}  what site NAME is given
"""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from focoop.errors import ConfigError

DAYS = 365


def make_keys(folder: Path, hosts: Sequence[str], sites: Sequence[str], days: int = DAYS) -> None:
    """Write all keys; `hosts` are the names and addresses by which sites reach the server."""
    if not hosts or not sites:
        raise ConfigError("name at least one host and one site")
    for name in sites:
        if not name.replace("-", "").replace("_", "").isalnum():
            raise ConfigError(f"a site cannot be called {name!r}: use letters, digits, - and _")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: keys are never overwritten")
    authority = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "focoop federation")])
    ca = _certificate(issuer, issuer, authority.public_key(), authority, days, None)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    server = _certificate(subject, issuer, key.public_key(), authority, days, hosts)
    _write(folder / "ca.key", _pem(authority), secret=True)
    _write(folder / "ca.crt", ca)
    _write(folder / "server.key", _pem(key), secret=True)
    _write(folder / "server.pem", server)
    for name in sites:
        add_site(folder, name)


def add_site(folder: Path, name: str) -> None:
    """One more site's key, of the kind Flower's node authentication takes."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    place = folder / "sites" / name
    _write(place / "key", private, secret=True)
    _write(place / "key.pub", public + f" {name}\n".encode())
    _write(place / "ca.crt", (folder / "ca.crt").read_bytes())


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    days: int,
    hosts: Sequence[str] | None,
) -> bytes:
    """A certificate as PEM: the authority's own without hosts, else a server's."""
    now = datetime.datetime.now(datetime.UTC)
    usage = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    signs = hosts is None
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=signs, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **usage
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if hosts is not None:
        names = x509.SubjectAlternativeName([_name(host) for host in hosts])
        server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        made = made.add_extension(names, critical=False).add_extension(server, critical=False)
    return made.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes, *, secret: bool = False) -> None:
    """A new file; a secret one is never readable by others, not even for a moment."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(handle, "wb") as file:
        file.write(content)

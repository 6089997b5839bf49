"""The certificate of one run: its listeners show it, and its clients trust it and nothing else.

It names no host and speaks for nobody: whoever holds the key is a process of the run. Made once, by `launch`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

SKEW = timedelta(days=1)
"""How far a node's clock may be behind that of the machine that made the certificate."""

LIFETIME = timedelta(days=3650)
"""A run may be resumed for as long; a pinned key has nothing to gain from ending earlier."""


class KeyPair(NamedTuple):
    """A certificate and its private key, both PEM."""

    certificate: str
    key: str


def make() -> KeyPair:
    """A fresh key on P-256 and a certificate that it signs itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "prorl run")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyPair(certificate.public_bytes(Encoding.PEM).decode(), private.decode())

"""A certificate authority for tests."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.wire.tls import client_context

LOCALHOST = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
NOW = datetime.datetime.now(datetime.UTC)


class Certificates:
    """A certificate authority, and server certificates with or without its signature."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        authority = self._builder(self._name, self._name, self._key, ca=True, days=1).sign(self._key, hashes.SHA256())
        self.file = str(folder / "authority.pem")
        Path(self.file).write_bytes(authority.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool, days: int
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - datetime.timedelta(days=10))
            .not_valid_after(NOW + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )

    def server(self, names=tuple(LOCALHOST), *, signed: bool = True, days: int = 1) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
        builder = self._builder(subject, self._name if signed else subject, key, ca=False, days=days)
        builder = builder.add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
        certificate = builder.sign(self._key if signed else key, hashes.SHA256())
        path = self._folder / f"server-{certificate.serial_number}.pem"
        path.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def client(self) -> ssl.SSLContext:
        context = client_context(True)
        context.load_verify_locations(self.file)
        return context

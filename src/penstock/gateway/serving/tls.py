"""TLS of the listener: its context, and the check of its files before workers start, which would fail with them."""

from __future__ import annotations

import ssl

from penstock.errors import UserError
from penstock.gateway.resources.config import ListenConfig


def server_context(listen: ListenConfig) -> ssl.SSLContext | None:
    """Return the context of the listener; None without TLS. `check_tls` has checked its files."""
    if listen.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(listen.tls_cert, listen.tls_key)
    return context


def check_tls(listen: ListenConfig) -> None:
    """Raise a UserError that names the file if the certificate or key cannot be used."""
    if listen.tls_cert is None or listen.tls_key is None:
        return
    _check_readable("certificate", listen.tls_cert)
    _check_readable("key", listen.tls_key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(listen.tls_cert)
    except ssl.SSLError:
        raise UserError(f"The TLS certificate {listen.tls_cert} is not a certificate in PEM format.") from None
    try:
        # Without a password callback, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(listen.tls_cert, listen.tls_key, lambda: b"")
    except ssl.SSLError as error:
        raise UserError(_message(error.reason, listen.tls_cert, listen.tls_key)) from None


def _message(reason: str | None, cert: str, key: str) -> str:
    if reason is None:  # not parsed at all
        return f"The TLS key {key} is not a private key in PEM format without a password."
    if reason in ("KEY_VALUES_MISMATCH", "NO_CERTIFICATE_ASSIGNED"):  # another key, or another type of key
        return f"The TLS key {key} does not match the certificate {cert}."
    return f"The TLS certificate {cert} cannot be used ({reason.lower().replace('_', ' ')})."


def _check_readable(kind: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise UserError(f"The TLS {kind} {path} cannot be read ({error.strerror}).") from None

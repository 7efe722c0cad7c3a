"""The certificate and the key of the proxy's listener, tried before a worker could only die of them."""

from __future__ import annotations

import ssl

from penstock.errors import UserError
from penstock.gateway.resources.config import ListenConfig

__all__ = ["check_tls"]


def check_tls(listen: ListenConfig) -> None:
    """Raises UserError, which names the file, when callers could not be served with them."""
    if listen.tls_cert is None or listen.tls_key is None:
        return
    _check_readable("certificate", listen.tls_cert)
    _check_readable("key", listen.tls_key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(listen.tls_cert)
    except ssl.SSLError:
        raise UserError(f"The TLS certificate {listen.tls_cert} is no certificate in PEM form.") from None
    try:
        # As the server does. Without a password of ours OpenSSL would ask the terminal for one.
        context.load_cert_chain(listen.tls_cert, listen.tls_key, lambda: b"")
    except ssl.SSLError as error:
        raise UserError(_sentence(error.reason, listen.tls_cert, listen.tls_key)) from None


def _sentence(reason: str | None, cert: str, key: str) -> str:
    if reason is None:  # it could not be read at all
        return f"The TLS key {key} is no private key in PEM form that can be used without a password."
    if reason in ("KEY_VALUES_MISMATCH", "NO_CERTIFICATE_ASSIGNED"):  # another one, or one of another kind
        return f"The TLS key {key} does not fit the certificate {cert}."
    return f"The TLS certificate {cert} cannot be used ({reason.lower().replace('_', ' ')})."


def _check_readable(what: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise UserError(f"The TLS {what} {path} cannot be read ({error.strerror}).") from None

"""The errors of a connection, as sentences with an owner."""

from __future__ import annotations

import errno
import os
import ssl

from penstock.wire.exchange import WireError

_TLS_ALERT = b"\x15\x03"
"""First bytes of a TLS server's reply to a request without TLS: an alert record, TLS version 3.x."""


def socket_error(error: OSError) -> WireError:
    """The error for a socket that could not be created."""
    hint = " Raise the limit (ulimit -n)." if error.errno == errno.EMFILE else ""
    return WireError(
        "NoSocket", f"The system cannot open another socket: {os.strerror(error.errno or 0)}.{hint}", "penstock"
    )


def connect_error(code: int, host_port: str) -> WireError:
    """The error for a TCP connection that could not be established, from its errno."""
    if code == errno.ECONNREFUSED:
        return WireError("ConnectionRefused", f"Nothing listens on {host_port}: the connection was refused.", "server")
    if code == errno.EADDRNOTAVAIL:
        return WireError(
            "NoLocalPort",
            f"This machine has no free local port left for {host_port}; reuse connections or widen the local port range.",
            "penstock",
        )
    return WireError("ConnectionFailed", f"No connection to {host_port}: {os.strerror(code)}.", "network")


def proxy_error(proxy: str, host_port: str, reason: str) -> WireError:
    """The error for a proxy that does not open a tunnel."""
    return WireError("ProxyError", f"The proxy {proxy} did not open a tunnel to {host_port}: {reason}.", "network")


def tls_error(error: ssl.SSLError, host_port: str) -> WireError:
    """The error for a failed handshake or for TLS records that cannot be decrypted."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message.rstrip(".")
        text = f"The certificate of {host_port} is not trusted: {reason}. Use --insecure to accept it."
        return WireError("CertificateError", text, "server")
    # A server that speaks plain HTTP answers a handshake with bytes that fail with one of these two reasons.
    hint = "; the server may speak http:// there" if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST") else ""
    return WireError("TLSError", f"TLS with {host_port} failed: {error.reason or error}{hint}.", "network")


def protocol_error(reason: str, data: bytes, *, tls: bool) -> WireError:
    """The error for a reply that is not HTTP/1.1; `data` is the read that shows it."""
    if not tls and data.startswith(_TLS_ALERT):
        return WireError("ProtocolError", "The server replied with a TLS alert: it speaks https:// there.", "server")
    return WireError("ProtocolError", f"The server's reply is not valid HTTP/1.1: {reason}.", "server")


def lost_error(error: OSError | None, *, reply_started: bool, tls_hint: bool = False) -> WireError:
    """The error for an open connection that ended during an exchange; `error` is None if the server closed it. With
    `tls_hint`, the server may have expected TLS."""
    when = "in the middle of its reply" if reply_started else "before it replied"
    if tls_hint:
        when += ", and nothing has been received from it so far; it may speak https:// there"
    if error is None:
        return WireError("ConnectionLost", f"The server closed the connection {when}.", "server")
    text = f"The connection failed ({os.strerror(error.errno or 0)}) {when}."
    by_server = error.errno in (errno.ECONNRESET, errno.EPIPE)
    return WireError("ConnectionLost", text, "server" if by_server else "network")

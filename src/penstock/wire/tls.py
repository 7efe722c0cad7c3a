"""TLS on memory buffers: the connection reads the socket itself, which keeps the kernel's receive stamps."""

from __future__ import annotations

import ssl

_CHUNK = 1 << 18


def client_context(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class TLS:
    """Encrypts and decrypts the bytes of one connection."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self.ready = False
        """The handshake is complete."""
        self.ended = False
        """The peer has closed its side."""

    def handshake(self) -> None:
        """Continue the handshake with the bytes received so far. Raise ssl.SSLError if it fails."""
        try:
            self._object.do_handshake()
            self.ready = True
        except ssl.SSLWantReadError:
            pass

    def feed(self, data: bytes | memoryview) -> None:
        self._incoming.write(data)

    def decrypt(self) -> list[bytes]:
        """Decrypt the complete records received so far."""
        plain = []
        try:
            while data := self._object.read(_CHUNK):
                plain.append(data)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        return plain

    def encrypt(self, data: bytes | memoryview) -> bytes:
        self._object.write(data)
        return self._outgoing.read()

    def outgoing(self) -> bytes:
        """Return the bytes that the protocol itself has to send."""
        return self._outgoing.read() if self._outgoing.pending else b""

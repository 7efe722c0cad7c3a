"""TLS in memory, so that reads stay ours and keep their stamps."""

from __future__ import annotations

import ssl

__all__ = ["TLS", "client_context"]

_CHUNK = 1 << 18


def client_context(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class TLS:
    """Bytes from the network in, plain bytes out, and the other way round."""

    __slots__ = ("_incoming", "_object", "_outgoing", "ended", "ready")

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self.ready = False
        """The handshake is done."""
        self.ended = False
        """The peer has said that nothing follows."""

    def handshake(self) -> None:
        """Goes as far as the bytes at hand allow; raises ssl.SSLError when the peer is refused."""
        try:
            self._object.do_handshake()
            self.ready = True
        except ssl.SSLWantReadError:
            pass

    def feed(self, data: bytes | memoryview) -> None:
        self._incoming.write(data)

    def plain(self) -> list[bytes]:
        """What can be decrypted now."""
        found = []
        try:
            while data := self._object.read(_CHUNK):
                found.append(data)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        return found

    def seal(self, data: bytes) -> bytes:
        self._object.write(data)
        return self._outgoing.read()

    def pending(self) -> bytes:
        """Bytes that the protocol itself wants sent."""
        return self._outgoing.read() if self._outgoing.pending else b""

"""gRPC between members and the hub: one method, bytes there and bytes back, mutual TLS.

Only members open connections. Both ends show a certificate that the authority signed.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

from ...checks import DisconnectedError, InputError
from .wire import Parcel, WireError, decode

try:
    import grpc
except ImportError:
    raise InputError(
        "sites need the packages of an extra: pip install coterie[sites]."
    ) from None

_METHOD = "/coterie.Hub/Call"

_KEEP_ALIVE = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)

_LONGEST = 60.0
"""Seconds after which a call counts as lost; the hub answers sooner."""


class Credentials(NamedTuple):
    """What one end shows, and whom it believes: PEM texts."""

    certificate: bytes
    key: bytes
    authority: bytes


def certificate_digest(pem: bytes) -> str:
    """The SHA-256 of a certificate, in hexadecimal digits."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    der = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    return hashlib.sha256(der).hexdigest()


@contextmanager
def serve(
    answer: Callable[[int, Parcel], Parcel],
    ranks: dict[str, int],
    address: str,
    credentials: Credentials,
    *,
    largest: int = 2**30,
) -> Iterator[int]:
    """Serves members until the context ends; gives the port.

    Args:
        answer: answers the message of a member.
        ranks: the member of each `certificate_digest`.
        address: host and port; port 0 takes any.
        credentials: of the hub.
        largest: the most bytes of a message.
    """
    known: dict[bytes, str] = {}  # digests take longer than small messages

    def call(blob: bytes, context: Any) -> bytes:
        shown = context.auth_context().get("x509_pem_cert", [b""])[0]
        if shown not in known and len(known) < 1000:
            known[shown] = certificate_digest(shown)
        rank = ranks.get(known.get(shown, ""))
        if rank is None:
            text = "this certificate is not on the roster"
            context.abort(grpc.StatusCode.PERMISSION_DENIED, text)
            raise AssertionError  # `abort` has raised
        try:
            return answer(rank, decode(blob, largest)).encode()
        except WireError as error:
            return Parcel({"error": str(error)}).encode()

    workers = 4 * len(ranks) + 4
    pool = ThreadPoolExecutor(workers)
    sizes = [(f"grpc.max_{way}_message_length", largest) for way in ("receive", "send")]
    server = grpc.server(
        pool,
        handlers=[_Handler(call)],
        options=[*_KEEP_ALIVE, *sizes, ("grpc.so_reuseport", 0)],
        maximum_concurrent_rpcs=workers,
    )
    own = grpc.ssl_server_credentials(
        [(credentials.key, credentials.certificate)],
        root_certificates=credentials.authority,
        require_client_auth=True,
    )
    try:
        port = server.add_secure_port(address, own)
    except RuntimeError:
        raise InputError(f"the hub cannot listen at {address}.") from None
    server.start()
    try:
        yield port
    finally:
        server.stop(1.0).wait()
        pool.shutdown()


class _Handler:
    """Finds the one method of the hub."""

    def __init__(self, call: Callable[[bytes, Any], bytes]) -> None:
        self._handler = grpc.unary_unary_rpc_method_handler(call)

    def service(self, details: Any) -> Any:
        """The method, if this is its name."""
        return self._handler if details.method == _METHOD else None


class HubChannel:
    """A member's connection to the hub."""

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        hub_name: str,
        *,
        largest: int = 2**30,
        give_up: float = 600.0,
    ) -> None:
        """Prepares the connection; it is made by the first message.

        Args:
            address: host and port of the hub.
            credentials: of the member.
            hub_name: the name in the hub's certificate.
            largest: the most bytes of a message.
            give_up: seconds without the hub after which the member stops.
        """
        self._largest, self._give_up = largest, give_up
        options = [
            *_KEEP_ALIVE,
            ("grpc.ssl_target_name_override", hub_name),
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 5_000),
            *[
                (f"grpc.max_{way}_message_length", largest)
                for way in ("receive", "send")
            ],
        ]
        own = grpc.ssl_channel_credentials(
            root_certificates=credentials.authority,
            private_key=credentials.key,
            certificate_chain=credentials.certificate,
        )
        self._channel = grpc.secure_channel(address, own, options)
        self._call = self._channel.unary_unary(_METHOD)
        self._closed = threading.Event()

    def ask(self, parcel: Parcel, *, patiently: bool = True) -> Parcel:
        """The hub's answer. It is asked again while it cannot be reached.

        Raises:
            DisconnectedError: if the hub cannot be reached, or refuses the member.
            InputError: if the hub refuses the message.
        """
        blob, pause = parcel.encode(), 0.1
        end = time.monotonic() + (self._give_up if patiently else 0.0)
        while True:
            try:
                found = decode(self._call(blob, timeout=_LONGEST), self._largest)
                break
            except grpc.RpcError as error:
                if error.code() not in _TEMPORARY:
                    raise DisconnectedError(
                        f"the hub refuses this member: {error.details()}."
                    ) from None
                if time.monotonic() > end or self._closed.wait(pause):
                    raise DisconnectedError(
                        f"the hub cannot be reached: {error.details()}."
                    ) from None
                pause = min(2 * pause, 2.0)
        if "error" in found.header:
            raise InputError(f"the hub answers: {found.header['error']}")
        return found

    def close(self) -> None:
        """Ends the connection."""
        self._closed.set()
        self._channel.close()


_TEMPORARY = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
)

"""Messages that do not fit: a hub refuses them, and goes on."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from coterie.checks import InputError
from coterie.deploy.sites.channel import HubChannel
from coterie.deploy.sites.hub import PROTOCOL, HubSettings
from coterie.deploy.sites.wire import (
    LARGEST_HEADER,
    Parcel,
    WireError,
    arrays_of,
    decode,
)
from support.sites import NAMES, credentials_of, hub_on_loopback

SETTINGS = HubSettings(patience=5.0)


def encoded(header: bytes, payload: bytes = b"") -> bytes:
    """A message whose header need not be JSON."""
    return struct.pack("<I", len(header)) + header + payload


BYTES = {
    "shorter than its beginning": b"ab",
    "ends before its header does": struct.pack("<I", 100) + b"{}",
    "is not JSON": encoded(b"{"),
    "is not a table": encoded(b"[1]"),
    "101 bytes, but 100 are allowed": b"x" * 101,
}


@pytest.mark.parametrize("sentence", BYTES)
def test_bytes_that_are_no_message_are_refused(sentence):
    with pytest.raises(WireError, match=sentence):
        decode(BYTES[sentence], 100)


def test_headers_cannot_use_much_memory_or_numbers_that_are_not():
    for header in (b'{"a": NaN}', b'{"a": Infinity}', b"[" * 100_000):
        with pytest.raises(WireError, match="is not JSON"):
            decode(encoded(header), 2**20)
    big = struct.pack("<I", LARGEST_HEADER + 1) + b"x" * (LARGEST_HEADER + 1)
    with pytest.raises(WireError, match="header"):
        decode(big, 2**30)


ARRAYS = {
    "does not say which arrays": (None, b""),
    "a type that is not allowed": ([["object", [1]]], bytes(8)),
    "a shape that is not allowed": ([["float32", [-1]]], b""),
    "ends before its arrays do": ([["float32", [3]]], bytes(8)),
    "more bytes than its arrays": ([["float32", [1]]], bytes(8)),
    "is not finite": ([["float32", [1]]], struct.pack("<f", float("nan"))),
    "number that is not finite": ([["float64", [1]]], struct.pack("<d", 1e999)),
}


@pytest.mark.parametrize("sentence", ARRAYS)
def test_arrays_that_are_not_as_described_are_refused(sentence):
    about, payload = ARRAYS[sentence]
    with pytest.raises(WireError, match=sentence):
        arrays_of(about, payload)


def test_a_described_array_is_never_larger_than_its_bytes():
    """A short message cannot make the hub reserve memory."""
    for shape in ([2**39], [2**20, 2**19], [2**39, 2**39, 2**39]):
        with pytest.raises(WireError):
            arrays_of([["float64", shape]], b"")


@pytest.fixture
def hub(tmp_path):
    """A hub, and a function that sends it a message as a member."""
    with hub_on_loopback(tmp_path, SETTINGS) as running:
        channels = {
            rank: HubChannel(
                f"127.0.0.1:{running.port}", credentials_of(name), "hub", give_up=5.0
            )
            for rank, name in enumerate(NAMES)
        }

        def send(rank: int, payload: bytes = b"", **header: Any) -> Parcel:
            return channels[rank].ask(Parcel(header, payload), patiently=False)

        yield running.hub, send
        for channel in channels.values():
            channel.close()


def begin(send, ranks=range(4)) -> None:
    """All members begin the first step."""
    for rank in ranks:
        told = {"protocol": PROTOCOL, "run": "run", "life": f"life {rank}", "done": -1}
        send(rank, kind="hello", **told)
    ready = {"kind": "begin", "step": 0, "what": "set-up", "after": 0}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda rank: send(rank, **ready, everybody=True), ranks))


WRONG = {
    "`kind` of a message must be a short text": {},
    "a call of the kind 'shout' is not known": {"kind": "shout"},
    "`step` of a message must be a whole number, got -1": {"kind": "sum", "step": -1},
    "`attempt` of a message must be a whole number": {"kind": "sum", "attempt": 0},
    "`number` of a message must be a whole number, got '0'": {
        "kind": "sum",
        "number": "0",
    },
    "call 7 comes before call 0": {"kind": "vote", "signature": "", "number": 7},
    "a sum needs one array": {"kind": "sum", "arrays": []},
    "masked rows must be whole numbers": {
        "kind": "rows",
        "arrays": [["float32", [1]]],
        "payload": bytes(4),
    },
    "must come with its digest": {
        "kind": "rows",
        "arrays": [["uint64", [1]]],
        "digest": "x",
        "payload": bytes(8),
    },
    "mail must name every receiver once": {
        "kind": "mail",
        "to": [1, 1],
        "arrays": [["uint8", [1]]] * 2,
        "payload": bytes(2),
    },
    "mail must go to other members": {
        "kind": "mail",
        "to": [0],
        "arrays": [["uint8", [1]]],
        "payload": bytes(1),
    },
    "does not let the hub see rows": None,
}


@pytest.mark.parametrize("sentence", [one for one in WRONG if WRONG[one] is not None])
def test_a_call_that_does_not_fit_is_refused_and_changes_nothing(hub, sentence):
    one, send = hub
    begin(send)
    place = {"step": 0, "attempt": 1, "number": 0}
    with pytest.raises(InputError, match=sentence):
        send(0, **({**place, **WRONG[sentence]} if WRONG[sentence] else place))
    vote = place | {"kind": "vote", "signature": ""}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda rank: send(rank, **vote), range(4)))
    assert one.step == 1


def test_duplicate_messages_count_once_and_changed_ones_are_refused(hub):
    one, send = hub
    begin(send)
    place = {"step": 0, "attempt": 1, "number": 0, "kind": "sum"}
    about = {"arrays": [["int64", [1]]]}

    def sum_of(rank: int, value: int = 1) -> Parcel:
        return send(rank, struct.pack("<q", value), **place, **about)

    with ThreadPoolExecutor(6) as pool:
        first = [pool.submit(sum_of, rank) for rank in (0, 0, 1)]
        while len(one._attempt._calls[0]) < 2 if one._attempt._calls else True:
            pass
        with pytest.raises(InputError, match="made with another content before"):
            sum_of(1, 5)
        rest = [pool.submit(sum_of, rank) for rank in (2, 3)]
        found = [future.result() for future in [*first, *rest]]
    assert {struct.unpack("<q", parcel.payload)[0] for parcel in found} == {4}
    assert struct.unpack("<q", sum_of(2).payload)[0] == 4  # late, and once more


def test_calls_of_another_attempt_or_step_are_too_late(hub):
    _, send = hub
    begin(send)
    told = {"kind": "vote", "signature": "", "number": 0}
    assert send(0, step=0, attempt=2, **told).header == {"aborted": True}
    vote = told | {"step": 0, "attempt": 1}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda rank: send(rank, **vote), range(4)))
    assert send(0, **vote).header == {"behind": True}
    with pytest.raises(InputError, match="it has an old log"):
        send(0, kind="begin", step=5, what="later", after=0)


def test_lists_that_are_none_are_refused(hub):
    _, send = hub
    for lists in ("x", [1], [[0]], [[0, [9]]], [["0", [1]]]):
        with pytest.raises(InputError, match="`lists` of a message must be"):
            send(0, kind="begin", step=0, what="set-up", after=0, lists=lists)


def test_a_member_of_another_run_or_protocol_is_refused(hub):
    _, send = hub
    told = {"kind": "hello", "life": "x", "done": -1}
    with pytest.raises(InputError, match="another study or another roster"):
        send(0, **told, protocol=PROTOCOL, run="other")
    with pytest.raises(InputError, match="install the same version"):
        send(0, **told, protocol=PROTOCOL + 1, run="run")
    with pytest.raises(InputError, match="the hub has an old log"):
        send(0, **{**told, "done": 3}, protocol=PROTOCOL, run="run")

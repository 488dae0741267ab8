"""Claims about leaving a run, and about reaching the hub through a proxy."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from coterie.checks import DisconnectedError
from coterie.deploy.sites.hub import Hub, HubSettings
from coterie.deploy.sites.joining import ready_to_join
from coterie.deploy.sites.leaving import leave_run
from coterie.deploy.sites.participation import take_part
from coterie.deploy.sites.serving import follow, read_hub, serving
from coterie.deploy.sites.store import Answer, Commit, HubStore
from coterie.deploy.sites.wire import Parcel
from support.called import called
from support.refusals import refuses
from support.site_folders import NAMES, STUDY, change_site, site_folders


def test_what_a_hub_keeps_for_a_member_that_leaves_is_overwritten(tmp_path):
    store = HubStore(tmp_path / "hub.db")
    mail = [Answer(0, rank, {}, bytes([rank]) * 3000) for rank in (1, 2)]
    store.commit(Commit(0, 1, "round 1", (0, 1, 2), {}), mail, None)
    hub = Hub(NAMES, "run", store, HubSettings())
    assert hub.answer(2, Parcel({"kind": "leave"})).header == {"left": True}
    assert [a.payload for a in store.answers(0, 1)] == [b"\x01" * 3000]
    assert store.answers(0, 2) == []
    store.close()
    bytes_left = b"".join(path.read_bytes() for path in tmp_path.glob("hub.db*"))
    assert b"\x01" * 100 in bytes_left and b"\x02" * 100 not in bytes_left


def test_a_member_that_has_left_does_not_return_even_to_a_hub_that_began_again(
    tmp_path,
):
    store = HubStore(tmp_path / "hub.db")
    hub = Hub(NAMES, "run", store, HubSettings())
    hub.answer(2, Parcel({"kind": "leave"}))
    for one in (hub, Hub(NAMES, "run", store, HubSettings())):
        for kind in ("hello", "begin", "alive", "log", "sum"):
            found = one.answer(2, Parcel({"kind": kind})).header
            assert found == {"error": "Bern has left this run."}
        assert one.is_lost(2) and not one.is_lost(1)
        assert "error" not in one.answer(1, Parcel({"kind": "alive"})).header
    store.close()


def test_the_others_go_on_when_a_member_leaves(tmp_path):
    text = STUDY.replace("rounds = 3", "rounds = 8") + "least_members = 2\n"
    study, sites = site_folders(tmp_path, text)
    files = read_hub(study, tmp_path / "demo" / "hub" / "roster.toml", None)
    begun = threading.Event()
    with serving(files, "127.0.0.1:0", tmp_path / "hub") as (hub, port):
        for path in sites.values():
            change_site(path, hub=f"127.0.0.1:{port}")

        def at(name: str):
            def say(line: str) -> None:
                if name == "Bern" and line.startswith("local"):  # after the set-up
                    words = ["leave", str(study), "--site", str(sites[name])]
                    assert called(*words)[0] == 1  # nobody says yes
                    leave_run(ready_to_join(study, sites[name]))
                    begun.set()

            return take_part(ready_to_join(study, sites[name]), say)

        with ThreadPoolExecutor(4) as pool:
            ended = pool.submit(follow, hub, lambda line: None)
            found = {name: pool.submit(at, name) for name in NAMES}
            assert found["Aarau"].result(60).is_dir()
            assert found["Basel"].result(60).is_dir()
            refuses("Bern has left this run", found["Bern"].result, 60)
            assert ended.result(60) == "done"
        present = {commit.present for commit in hub.store.commits()[1:]}
    assert begun.is_set() and (0, 1) in present


@contextmanager
def proxy() -> Iterator[tuple[int, list[bytes]]]:
    """The port of an HTTP proxy, and the first line of each request to it."""
    asked: list[bytes] = []
    server = socket.create_server(("127.0.0.1", 0))

    def pipe(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        target.close()

    def serve() -> None:
        while True:
            try:
                inner, _ = server.accept()
            except OSError:
                return
            request = b""
            while not request.endswith(b"\r\n\r\n"):
                request += inner.recv(4096)
            asked.append(request.splitlines()[0])
            host, _, port = request.split()[1].decode().rpartition(":")
            outer = socket.create_connection((host, int(port)))
            inner.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for ends in ((inner, outer), (outer, inner)):
                threading.Thread(target=pipe, args=ends, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield server.getsockname()[1], asked
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def test_a_member_reaches_the_hub_through_a_proxy(tmp_path, monkeypatch):
    study, sites = site_folders(tmp_path)
    files = read_hub(study, tmp_path / "demo" / "hub" / "roster.toml", None)
    for name in ("no_proxy", "no_grpc_proxy", "http_proxy", "grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving(files, "127.0.0.1:0", tmp_path / "hub") as (_, port):
        with proxy() as (through, asked):
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{through}")
            change_site(sites["Bern"], hub=f"127.0.0.1:{port}")
            words = ["join", str(study), "--site", str(sites["Bern"]), "--check"]
            code, shown, _ = called(*words)
            assert code == 0, shown
            assert f"proxy         https_proxy is 'http://127.0.0.1:{through}'" in shown
            assert asked[0].startswith(f"CONNECT 127.0.0.1:{port} ".encode())
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    with pytest.raises(DisconnectedError):
        leave_run(ready_to_join(study, sites["Bern"]))

"""Links that fail: a member reaches its hub through a proxy that misbehaves."""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from coterie.checks import InputError
from coterie.deploy.sites.hub import HubSettings
from coterie.deploy.sites.member_store import MemberStore
from coterie.deploy.sites.store import HubStore
from support.sites import (
    NAMES,
    hub_on_loopback,
    run_site,
    simulated,
    site_files,
    tables_of,
)

PATIENT, BRIEF = HubSettings(patience=10.0), HubSettings(patience=1.2)
SHORT = tables_of("""
[run]
rounds = 6
seeds = [3]
batch_size = 8
[[algorithm]]
name = "fedavg"
lr = 0.1
steps = 2
[[algorithm]]
name = "decentralised_sgd"
lr = 0.1
""")


class BadProxy:
    """Forwards bytes between a member and its hub, more or less."""

    def __init__(
        self,
        port: int,
        *,
        refuses: int = 0,
        delay: float = 0.0,
        idle: float | None = None,
        http: bool = False,
    ) -> None:
        """Listens on a port of its own.

        Args:
            port: of the hub.
            refuses: the number of connections that it closes at once.
            delay: seconds for each piece of at most 4096 bytes.
            idle: seconds without bytes after which it ends a connection.
            http: whether it is asked by CONNECT, as the proxy of a site.
        """
        self._target, self._refuses, self._delay = port, refuses, delay
        self._idle, self._http = idle, http
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.taken = 0
        self._open: list[socket.socket] = []
        self._over, self._silent = threading.Event(), threading.Event()
        self._drops = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.taken += 1
            if self.taken <= self._refuses:
                near.close()
                continue
            if self._http and not self._answer(near):
                continue
            far = socket.create_connection(("127.0.0.1", self._target))
            self._open += [near, far]
            for ends in ((near, far), (far, near)):
                one = threading.Thread(target=self._forward, args=ends, daemon=True)
                one.start()
                self._threads.append(one)

    def _answer(self, near: socket.socket) -> bool:
        """Answers CONNECT; whether it was asked for the hub."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            piece = near.recv(1)
            if not piece:
                return False
            head += piece
        asked = f"CONNECT 127.0.0.1:{self._target} HTTP/1.1"
        assert head.decode().splitlines()[0] == asked
        near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        return True

    def _forward(self, source: socket.socket, to: socket.socket) -> None:
        source.settimeout(self._idle)
        try:
            while piece := source.recv(4096):
                time.sleep(self._delay)
                while self._silent.is_set() and not self._over.is_set():
                    time.sleep(0.01)
                if not self._drops.is_set():
                    to.sendall(piece)
        except OSError:
            pass
        finally:
            for one in (source, to):
                one.close()

    def cut(self) -> None:
        """Ends all connections."""
        for one in self._open:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self._open.clear()

    def fall_silent(self, seconds: float) -> None:
        """Keeps all bytes back for a while, as a partition does."""
        self._silent.set()
        time.sleep(seconds)
        self._silent.clear()

    def drop(self, seconds: float) -> None:
        """Loses all bytes for a while, and then ends the connections."""
        self._drops.set()
        time.sleep(seconds)
        self.cut()
        self._drops.clear()

    def close(self) -> None:
        """Ends everything."""
        self._over.set()
        self._listener.close()
        self.cut()


@contextmanager
def proxied(made, port: int, **how) -> Iterator[BadProxy]:
    proxy = made(port, **how)
    try:
        yield proxy
    finally:
        proxy.close()


def train_through(
    folder, settings, happen=lambda proxy, hub: None, made=BadProxy, **how
):
    """Trains with Basel behind a bad proxy; gives the steps that count."""
    files = site_files(folder)
    with (
        hub_on_loopback(folder, settings) as running,
        proxied(made, running.port, **how) as proxy,
    ):
        http = how.get("http", False)
        behind = running if http else running._replace(port=proxy.port)

        def run(name: str):
            try:
                where = behind if name == "Basel" else running
                return run_site(where, name, SHORT, files[name], folder)
            except BaseException:
                running.hub.stop()  # or the others wait for this member
                raise

        with ThreadPoolExecutor(len(NAMES)) as pool:
            futures = {name: pool.submit(run, name) for name in NAMES}
            happen(proxy, running.hub)
            found = {name: future.result()[1] for name, future in futures.items()}
        commits = running.hub.store.commits()
    wanted = simulated(folder, SHORT, commits)
    for rank, name in enumerate(NAMES):
        for label, models in wanted.items():
            torch.testing.assert_close(
                found[name].models(label, 3), models[[rank]], rtol=0, atol=1e-6
            )
    return commits, proxy


def wait_for_step(hub, step: int) -> None:
    end = time.monotonic() + 15
    while hub.step < step and time.monotonic() < end:
        time.sleep(0.01)


def test_a_proxy_that_closes_connections_at_first_is_tried_again(tmp_path):
    commits, proxy = train_through(tmp_path, PATIENT, refuses=1)
    assert proxy.taken >= 2
    assert all(len(commit.present) == 4 for commit in commits)


def test_a_slow_link_only_takes_time(tmp_path):
    commits, _ = train_through(tmp_path, PATIENT, delay=0.01)
    assert all(len(commit.present) == 4 for commit in commits)


def test_connections_that_are_cut_are_made_again(tmp_path):
    def happen(proxy, hub):
        for step in (1, 2, 4, 6, 9, 11):
            wait_for_step(hub, step)
            proxy.cut()

    commits, proxy = train_through(tmp_path, PATIENT, happen)
    assert proxy.taken >= 3
    assert len(commits) == 1 + 2 * 7


def test_bytes_that_are_lost_are_sent_again(tmp_path):
    def happen(proxy, hub):
        for step in (2, 9):
            wait_for_step(hub, step)
            proxy.drop(0.5)

    commits, proxy = train_through(tmp_path, PATIENT, happen)
    assert proxy.taken >= 2
    assert len(commits) == 1 + 2 * 7


def test_all_members_train_through_an_http_proxy_that_fails(tmp_path, monkeypatch):
    """It closes connections at first, is slow, and ends those that are idle."""
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")

    def happen(proxy, hub):
        for step in (2, 9):
            wait_for_step(hub, step)
            with hub._turn:  # nobody gets an answer
                time.sleep(1.0)

    how = {"refuses": 2, "delay": 0.002, "idle": 0.5, "http": True}
    with monkeypatch.context() as patch:

        def behind(port: int, **options) -> BadProxy:
            proxy = BadProxy(port, **options)
            patch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
            return proxy

        commits, proxy = train_through(tmp_path, PATIENT, happen, behind, **how)
    assert proxy.taken > 2 + len(NAMES)
    assert len(commits) == 1 + 2 * 7


@pytest.mark.parametrize("step", [3, 10])
def test_a_member_behind_a_partition_is_lost_and_comes_back(tmp_path, step):
    """It is cut off for longer than the hub waits, in both kinds of rounds."""

    def happen(proxy, hub):
        wait_for_step(hub, step)
        proxy.fall_silent(2.5)

    commits, _ = train_through(tmp_path, BRIEF, happen)
    assert any(1 not in commit.present for commit in commits)
    assert 1 in commits[0].present and len(commits) == 1 + 2 * 7


def test_a_member_with_a_full_disk_sends_nothing_and_says_so(tmp_path, monkeypatch):
    """An attempt must be on the disk before anything of it leaves."""
    true = MemberStore.begin

    def begin(store, step, attempt, what):
        full = step == 3 and store.folder.name == "Basel"
        if full:
            store._db.execute("PRAGMA max_page_count = 1")  # no larger than it is
        return true(store, step, attempt, what * (3000 if full else 1))

    monkeypatch.setattr(MemberStore, "begin", begin)
    files = site_files(tmp_path)

    def run(name: str):
        try:
            return run_site(running, name, SHORT, files[name], tmp_path)[1]
        except InputError as error:
            return error

    with hub_on_loopback(tmp_path, BRIEF) as running:
        with ThreadPoolExecutor(len(NAMES)) as pool:
            found = dict(zip(NAMES, pool.map(run, NAMES), strict=True))
        commits = running.hub.store.commits()
    assert "disk is full" in str(found["Basel"])
    assert [1 in commit.present for commit in commits[1:6]] == [True] * 2 + [False] * 3
    assert not any(isinstance(found[name], Exception) for name in ("Aarau", "Chur"))


def test_a_hub_with_a_full_disk_ends_with_the_reason(tmp_path, monkeypatch):
    true = HubStore.commit

    def commit(store, one, answers, server):
        if one.step == 3:
            raise sqlite3.OperationalError("database or disk is full")
        return true(store, one, answers, server)

    monkeypatch.setattr(HubStore, "commit", commit)
    files = site_files(tmp_path)

    def run(name: str):
        try:
            return run_site(running, name, SHORT, files[name], tmp_path)[1]
        except (InputError, RuntimeError) as error:
            return error

    with hub_on_loopback(tmp_path, BRIEF) as running:
        with ThreadPoolExecutor(len(NAMES)) as pool:
            found = dict(zip(NAMES, pool.map(run, NAMES), strict=True))
        ended = running.hub.ended
    said = " | ".join(f"{name}: {one}" for name, one in found.items())
    assert "full" in ended and "full" in said, (ended, said)

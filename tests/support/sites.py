"""A hub and members on the loopback, with certificates made for a test."""

from __future__ import annotations

import datetime
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from coterie.checks import DisconnectedError
from coterie.data.files import table as read_table
from coterie.deploy.sites.channel import Credentials, HubChannel, fingerprint, serve
from coterie.deploy.sites.hub import Hub, HubSettings
from coterie.deploy.sites.member import Member
from coterie.deploy.sites.member_store import MemberStore
from coterie.deploy.sites.runs import SiteRun, mask
from coterie.deploy.sites.site_data import read_site_table
from coterie.deploy.sites.store import HubStore
from coterie.engine.rounds import init_oracle
from coterie import seeds
from coterie.records import Folder
from coterie.study import Study, study_of
from coterie.study.setup import prepare

NAMES = ("Aarau", "Basel", "Bern", "Chur")


class Authority:
    """Signs certificates for a test."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self._own = self._signed(self._name, self._key, authority=True)
        self.pem = self._own.public_bytes(serialization.Encoding.PEM)

    def _signed(self, name, key, *, authority=False, days=(-1, 2)):
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(days=days[0]))
            .not_valid_after(now + datetime.timedelta(days=days[1]))
            .add_extension(x509.BasicConstraints(authority, None), critical=True)
        )
        if not authority:
            text = name.rdns[0]._attributes[0].value
            names = x509.SubjectAlternativeName([x509.DNSName(text)])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def credentials(self, name: str, days: tuple[int, int] = (-1, 2)) -> Credentials:
        """A new key with its certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        pem = self._signed(named, key, days=days).public_bytes(
            serialization.Encoding.PEM
        )
        plain = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Credentials(pem, plain, self.pem)


def site_files(folder: Path, names: Sequence[str] = NAMES) -> dict[str, Path]:
    """A file of each hospital of the example, and one with all of them."""
    source = Path(__file__).parents[2] / "examples" / "hospitals.csv"
    rows = pd.read_csv(source)
    rows = rows[rows["hospital"].isin(names)]
    found = {}
    for name in names:
        found[name] = folder / f"{name}.csv"
        own = rows[rows["hospital"] == name].drop(columns="hospital")
        own.to_csv(found[name], index=False)
    found["all"] = folder / "all.csv"
    rows.to_csv(found["all"], index=False)
    return found


def tables_of(text: str) -> dict[str, Any]:
    """The tables of a small study of hospitals, with these algorithms."""
    start = """
    name = "sites"
    [data]
    name = "file"
    path = "elsewhere.csv"
    client = "hospital"
    target = "outcome"
    [split]
    name = "natural"
    test = 0.3
    [model]
    name = "logistic"
    """
    return tomllib.loads(start + text)


def study_with(tables: dict[str, Any], table: Any) -> Study:
    """The study of these tables, with a site's table as its data."""
    return study_of({**tables, "data": {}}, data=table)


class Running(NamedTuple):
    """A hub that serves members on the loopback."""

    hub: Hub
    port: int
    credentials: dict[str, Credentials]
    names: Sequence[str]


@contextmanager
def hub_on_loopback(
    folder: Path, settings: HubSettings, names: Sequence[str] = NAMES, **options: Any
) -> Iterator[Running]:
    """A hub in this process."""
    authority = Authority()
    credentials = {name: authority.credentials(name) for name in (*names, "hub")}
    ranks = {fingerprint(credentials[n].certificate): r for r, n in enumerate(names)}
    store = HubStore(folder / "hub.db")
    hub = Hub(names, "run", store, settings, **options)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(min(0.1, settings.patience / 4)):
            hub.look()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with serve(hub.answer, ranks, "127.0.0.1:0", credentials["hub"]) as port:
            yield Running(hub, port, credentials, names)
            hub.stop()
    finally:
        over.set()
        watcher.join()
        store.close()


class Killed(BaseException):
    """The end of a member, as by `kill -9`: nobody hears of it."""


class Death(NamedTuple):
    """When a member dies, and when it returns."""

    step: int
    call: int  # the number of its message in this step; 0 is that it is ready
    back: int  # how many steps later it returns; 0: at once
    before: bool = True  # whether the message is lost, too


class DyingChannel:
    """A channel whose member dies at a message."""

    def __init__(self, channel: HubChannel, death: Death) -> None:
        self._channel, self._death = channel, death
        self._calls = 0
        self.dead = False

    def ask(self, parcel: Any, *, patiently: bool = True) -> Any:
        if self.dead:
            raise DisconnectedError("dead")
        at = parcel.header.get("step") == self._death.step
        dies = False
        if at and parcel.header["kind"] not in ("hello", "log"):
            dies = self._calls == self._death.call
            self._calls += 1
        if dies and self._death.before:
            self.dead = True
            raise Killed
        found = self._channel.ask(parcel, patiently=patiently)
        if dies:
            self.dead = True
            raise Killed
        return found

    def close(self) -> None:
        self._channel.close()


@contextmanager
def member_of(
    running: Running, name: str, folder: Path, death: Death | None = None
) -> Iterator[Member]:
    """A member of a running hub."""
    address = f"127.0.0.1:{running.port}"
    channel: Any = HubChannel(address, running.credentials[name], "hub", give_up=20.0)
    if death is not None:
        channel = DyingChannel(channel, death)
    store = MemberStore(folder / name)
    member = Member(channel, store, running.names, list(running.names).index(name))
    try:
        yield member
    finally:
        member.close()
        store.close()


def run_site(
    running: Running,
    name: str,
    tables: dict[str, Any],
    path: Path,
    folder: Path,
    death: Death | None = None,
) -> Any:
    """Trains the study at one site; gives its cells and the folder of its results."""
    table = read_site_table(tables["data"], path, name)
    study = study_with(tables, table)
    results = Folder(folder / name / "results")
    results.create(study.tables(), {})
    try:
        with member_of(running, name, folder, death) as member:
            return SiteRun(study, table, member, results).run("run"), results
    except Killed:
        assert death is not None  # only a dying member is killed
    wait_for(lambda: running.hub.step >= death.step + death.back)
    return run_site(running, name, tables, path, folder)


def wait_for(happened: Callable[[], bool], seconds: float = 15.0) -> None:
    """Waits until something has happened."""
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError("it did not happen in time.")
        time.sleep(0.01)


def run_sites(
    folder: Path,
    tables: dict[str, Any],
    settings: HubSettings,
    deaths: Mapping[str, Death] | None = None,
    **options: Any,
) -> tuple[list[Any], dict[str, Any]]:
    """Trains the study at all sites, each in a thread."""
    files = site_files(folder)
    with hub_on_loopback(folder, settings, **options) as running:
        with ThreadPoolExecutor(len(NAMES)) as pool:
            futures = {
                name: pool.submit(
                    run_site,
                    *(running, name, tables, files[name], folder),
                    (deaths or {}).get(name),
                )
                for name in NAMES
            }
            done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
            if any(future.exception() for future in done):
                running.hub.stop()
        found = {name: future.result() for name, future in futures.items()}
        commits = running.hub.store.commits()
    return commits, found


def simulated(
    folder: Path, tables: dict[str, Any], commits: Sequence[Any]
) -> dict[str, torch.Tensor]:
    """The final models of each algorithm in a simulation with the same participation."""
    table = read_table(folder / "all.csv", client="hospital", target="outcome")
    study = study_with(tables, table)
    (seed,) = study.run.seeds
    setup = prepare(study, seed)
    present = {commit.what: commit.present for commit in commits}
    found = {}
    for entry in study.algorithms:
        algorithm, asked = setup.algorithm(entry), setup.asked_by(entry)
        state = algorithm.init(setup.x.clone(), init_oracle(asked))
        for t in range(1, study.run.rounds + 1):
            active = mask(present[f"{entry.label}, seed {seed}, round {t}"], len(asked))
            rng = seeds.generator(seed, "algorithm", t)
            state, _ = algorithm.step(state, asked.at(t, active), rng)
        oracle = asked.at(study.run.rounds, purpose="use")
        found[entry.label] = algorithm.personal(state, oracle)
    return found

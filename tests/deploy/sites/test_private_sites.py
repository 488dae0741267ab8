"""Claims about studies with [privacy] between a hub and members on the loopback."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from coterie.checks import InputError
from coterie.data.files import table as read_table
from coterie.deploy.sites.declared import (
    declared_description,
    with_declared_preparation,
)
from coterie.deploy.sites.hub import Hub, HubSettings
from coterie.deploy.sites.link import RunOver
from coterie.deploy.sites.member_store import MemberStore
from coterie.deploy.sites.noise import BudgetSpent, SiteLedger
from coterie.deploy.sites.runs import SiteRun, private_study
from coterie.deploy.sites.site_data import (
    agreed_table,
    own_federation,
    read_site_table,
)
from coterie.privacy.accounting import epsilon_of
from coterie.records import Folder
from coterie.study.setup import prepare
from support.sites import (
    NAMES,
    Death,
    Killed,
    hub_on_loopback,
    member_of,
    simulated,
    site_files,
    study_with,
    tables_of,
    wait_for,
)

SETTINGS = HubSettings(patience=3.0)
DECLARED = {
    "classes": ["ill", "well"],
    "categories": {"sex": ["f", "m"], "pain": ["mild", "none", "strong"]},
}


def tables_with(
    privacy: dict[str, Any], more: str = "", **sites: Any
) -> dict[str, Any]:
    """A short private study of hospitals."""
    found = tables_of(f"""
    [run]
    rounds = 2
    seeds = [3]
    batch_size = 8
    [[algorithm]]
    name = "fedavg"
    lr = 0.1
    steps = 2
    {more}
    """)
    found["data"]["scale"] = "client"
    found["privacy"] = {"noise_source": "system", **privacy}
    found["sites"] = {**DECLARED, **sites}
    return found


def run_private(
    folder, tables, budgets=None, commits=None, deaths=None
) -> dict[str, Any]:
    """What every site got: its models and its ledger, or its error."""
    files = site_files(folder)

    def run(name: str) -> Any:
        table = read_site_table(tables["data"], files[name], name)
        study = study_with(tables, table)
        ledger = SiteLedger(folder / name / "ledger", 1e-5, (budgets or {}).get(name))
        results = Folder(folder / name / "results")
        results.create(study.tables(), {})
        own = (deaths or {}).get(name, [])
        try:
            with member_of(running, name, folder, own) as member:
                SiteRun(study, table, member, results, ledger=ledger).train("run")
        except Killed:
            wait_for(lambda: running.hub.step >= own[0].step + own[0].back)
            with member_of(running, name, folder) as member:
                SiteRun(study, table, member, results, ledger=ledger).train("run")
        except (InputError, RunOver) as error:
            return error, ledger
        except BaseException:
            running.hub.stop()  # or the others wait for this member
            raise
        return results.models("fedavg", 3), ledger

    with hub_on_loopback(folder, SETTINGS) as running:
        with ThreadPoolExecutor(len(NAMES)) as pool:
            found = dict(zip(NAMES, pool.map(run, NAMES), strict=True))
        if commits is not None:
            commits.extend(running.hub.store.commits())
    return found


NEARLY_NONE = {"clip": 100.0, "noise": 2e-6}


@pytest.mark.parametrize("aggregation", ["local", "secure"])
def test_with_hardly_any_noise_models_are_those_without(tmp_path, aggregation):
    tables = tables_with({**NEARLY_NONE, "aggregation": aggregation})
    commits: list[Any] = []
    found = run_private(tmp_path, tables, commits=commits)
    plain = {k: v for k, v in tables.items() if k != "privacy"}
    wanted = simulated(tmp_path, plain, commits)["fedavg"]
    for rank, name in enumerate(NAMES):
        torch.testing.assert_close(
            found[name][0], wanted[rank : rank + 1], rtol=0, atol=5e-3
        )


@pytest.mark.parametrize(
    ("aggregation", "kind"), [("local", "uint32"), ("secure", "uint64")]
)
def test_rows_with_whole_number_noise_have_64_bits(
    tmp_path, monkeypatch, aggregation, kind
):
    """What they add up to must be as fine as the proof of the noise needs."""
    seen, true = set(), Hub.answer

    def answer(hub, rank, parcel):
        if parcel.header.get("kind") == "rows" and parcel.header.get("step") == 3:
            seen.update(one for one, _ in parcel.header.get("arrays", ()))
        return true(hub, rank, parcel)

    monkeypatch.setattr(Hub, "answer", answer)
    run_private(tmp_path, tables_with({**NEARLY_NONE, "aggregation": aggregation}))
    assert seen == {kind}


@pytest.mark.parametrize("aggregation", ["local", "secure"])
def test_the_mean_of_models_has_the_noise_that_was_charged(tmp_path, aggregation):
    """Models hardly move, so the mean is the first model and the noise of one round."""
    tables = tables_with({"clip": 1.0, "noise": 0.5, "aggregation": aggregation})
    tables["run"]["rounds"] = 1
    tables["algorithm"][0] |= {"lr": 1e-9, "weighting": "uniform"}
    tables["model"] = {"name": "mlp", "hidden": [64]}
    found = run_private(tmp_path, tables)
    models = torch.cat([found[name][0] for name in NAMES])
    assert torch.equal(models, models[:1].expand_as(models))
    first = first_model(tables, tmp_path)
    noise = (models[0] - first).double()
    each = 0.5 / 2 if aggregation == "secure" else 0.5
    expected = each / 2  # the mean of four
    assert len(noise) > 500
    assert abs(float(noise.std()) / expected - 1) < 5 / (2 * len(noise)) ** 0.5 + 1e-3
    # mu of the round: for a secure sum against the hub and one member, and one absent.
    squares = (2 / 0.5) ** 2 * (4 / 2 if aggregation == "secure" else 1)
    for _, ledger in found.values():
        (charge,) = ledger.charges
        assert charge.what == "fedavg, seed 3, round 1"
        assert charge.cost == pytest.approx(squares)


def test_single_samples_are_hidden_by_noise_and_minibatches_of_the_site(tmp_path):
    tables = tables_with({"clip": 1.0, "noise": 2.0, "unit": "sample"})
    found = run_private(tmp_path, tables)
    models = torch.cat([found[name][0] for name in NAMES])
    assert torch.equal(models, models[:1].expand_as(models))
    for _, ledger in found.values():
        rounds = [charge.cost for charge in ledger.charges]
        assert len(rounds) == 2 and rounds[0] == rounds[1]
        ((noise, rate, held_out),) = rounds[0]
        assert (noise, held_out) == (2.0, False) and 0 < rate < 1
        assert rounds[0].total() == 2  # local steps
        assert 0 < ledger.epsilon < 10


def first_model(tables: dict[str, Any], folder) -> torch.Tensor:
    """The model with which all sites begin."""
    options = {k: v for k, v in tables["data"].items() if k not in ("name", "path")}
    plain = {k: v for k, v in tables.items() if k != "privacy"}
    study = study_with(plain, read_table(folder / "all.csv", **options))
    return prepare(study, 3).x[0]


def test_every_attempt_is_charged_before_it_leaves_also_if_it_is_aborted(tmp_path):
    tables = tables_with({"clip": 1.0, "noise": 1.0, "aggregation": "secure"})
    deaths = {"Basel": [Death(2, "rows", 1)]}
    found = run_private(tmp_path, tables, deaths=deaths)
    for name, (_, ledger) in found.items():
        steps = [(charge.step, charge.attempt) for charge in ledger.charges]
        others = [(2, 1), (2, 2), (3, 1)]
        assert steps == ([(2, 1), (3, 1)] if name == "Basel" else others)
        left = MemberStore(tmp_path / name).departures()
        assert {one.step for one in left if one.kind == "rows"} <= {0, 1, 2, 3}


def test_a_site_stops_at_its_own_budget_and_the_others_go_on(tmp_path):
    tables = tables_with({"clip": 1.0, "noise": 1.0, "aggregation": "secure"})
    one = (2.0 / 1.0) ** 2 * 4 / 2
    budgets = {"Chur": epsilon_of(one**0.5, 1e-5)}
    commits: list[Any] = []
    found = run_private(tmp_path, tables, budgets, commits)
    error, ledger = found["Chur"]
    assert isinstance(error, BudgetSpent) and "round 2 could raise" in str(error)
    assert len(ledger.charges) == 1
    assert [commit.present for commit in commits[2:]] == [(0, 1, 2, 3), (0, 1, 2)]
    for name in NAMES[:3]:
        assert isinstance(found[name][0], torch.Tensor)


UNDECLARED = {
    "`sites.classes` must list the classes": {"classes": []},
    "class 'well' is not in `sites.classes`": {"classes": ["ill", "dead"]},
    "`sites.categories` must have column 'pain'": {"categories": {"sex": ["f", "m"]}},
    "'strong' in column 'pain' is not in": {
        "categories": {"sex": ["f", "m"], "pain": ["mild", "none"]}
    },
    "`sites.categories` names 'colour'": {
        "categories": {**DECLARED["categories"], "colour": ["red"]}
    },
}


def refused(tables: dict[str, Any], folder) -> str:
    """Why a site refuses a study before it says anything to anybody."""
    path = site_files(folder)["Bern"]
    table = read_site_table(tables["data"], path, "Bern")
    ledger = SiteLedger(folder / "ledger", 1e-5)
    with pytest.raises(InputError) as error:
        private_study(study_with(tables, table), table, 4, ledger)
    return str(error.value)


@pytest.mark.parametrize("sentence", UNDECLARED)
def test_what_the_study_does_not_say_is_not_told_but_refused(tmp_path, sentence):
    tables = tables_with({"noise": 1.0}, **UNDECLARED[sentence])
    assert sentence in refused(tables, tmp_path)


def test_scales_of_all_sites_come_from_ranges(tmp_path):
    tables = tables_with({"noise": 1.0})
    tables["data"]["scale"] = "agreed"
    assert "`sites.ranges` must have column 'age'" in refused(tables, tmp_path)
    ranges = {"age": [0, 120], "pressure": [60, 240], "cholesterol": [2, 12]}
    tables["sites"]["ranges"] = ranges | {"smokes": [0, 1]}
    table = read_site_table(tables["data"], tmp_path / "Bern.csv", "Bern")
    study = study_with(tables, table)
    study = private_study(study, table, 4, SiteLedger(tmp_path / "ledger", 1e-5))
    told = [declared_description(study.sites, table)] * 4
    own = own_federation(study, agreed_table(table, told, NAMES), 3, NAMES, 2)
    found = with_declared_preparation(own, study)
    place = found.columns.index("age")
    raw = own.raw[:, [c.name for c in own.schema.columns].index("age")].double()
    expected = (raw - 60) / (120 / 12**0.5)
    there = ~raw.isnan()
    torch.testing.assert_close(
        found.features[there, place].double(), expected[there], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    ("sentence", "privacy", "sites"),
    [
        ("noise from a seed protects nobody", {"noise_source": "seed"}, {}),
        ("needs `sites.masks = true`", {"aggregation": "secure"}, {"masks": False}),
    ],
)
def test_studies_that_would_not_protect_a_site_are_refused(
    tmp_path, sentence, privacy, sites
):
    assert sentence in refused(
        tables_with({"noise": 1.0, **privacy}, **sites), tmp_path
    )


def test_a_private_study_needs_a_ledger(tmp_path):
    tables = tables_with({"noise": 1.0})
    table = read_site_table(tables["data"], site_files(tmp_path)["Bern"], "Bern")
    with pytest.raises(InputError, match="needs the ledger of this site"):
        private_study(study_with(tables, table), table, 4, None)

"""Claims about studies with [privacy] between a hub and members on the loopback."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from coterie.checks import InputError, Problems
from coterie.deploy.sites.hub import HubSettings
from coterie.deploy.sites.noise import SiteLedger
from coterie.deploy.sites.runs import SiteRun
from coterie.deploy.sites.site_data import read_site_table
from coterie.records import Folder
from support.sites import (
    NAMES,
    hub_on_loopback,
    member_of,
    simulated,
    site_files,
    study_with,
    tables_of,
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


def run_private(folder, tables, budgets=None, commits=None) -> dict[str, Any]:
    """What every site got: its models and its ledger, or its error."""
    files = site_files(folder)

    def run(name: str) -> Any:
        table = read_site_table(tables["data"], files[name], name)
        study = study_with(tables, table)
        ledger = SiteLedger(folder / name / "ledger", 1e-5, (budgets or {}).get(name))
        results = Folder(folder / name / "results")
        results.create(study.tables(), {})
        try:
            with member_of(running, name, folder) as member:
                SiteRun(study, table, member, results, ledger=ledger).train("run")
        except (InputError, Problems) as error:
            return error, ledger
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
    assert not [one for one, _ in found.values() if isinstance(one, Exception)]
    plain = {k: v for k, v in tables.items() if k != "privacy"}
    wanted = simulated(tmp_path, plain, commits)["fedavg"]
    for rank, name in enumerate(NAMES):
        torch.testing.assert_close(
            found[name][0], wanted[rank : rank + 1], rtol=0, atol=5e-3
        )

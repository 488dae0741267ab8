"""Claims about audits of studies: sound ones pass, broken ones are caught."""

from __future__ import annotations

import math

import pytest
import torch

from coterie import seeds
from coterie.checks import InputError
from coterie.clients.samples import Batch
from coterie.engine.rounds import run_rounds
from coterie.privacy.accounting.ledger import LOSSES
from coterie.privacy.attacks import Listener, OverheardClients, telling_losses_to
from coterie.privacy.mechanisms import events_of, methods, telling
from coterie.privacy.mechanisms import rows as of_clients
from coterie.privacy.mechanisms.dry_run import foreseen, scenarios
from coterie.privacy.mechanisms.per_sample import mechanisms as of_samples
from coterie.privacy.mechanisms.per_sample import simulation
from coterie.privacy.mechanisms.per_sample.clipping import ClippedKernel
from coterie.study.attacks import audit_study, insiders
from coterie.study.attacks.canaries import canaries_of
from coterie.study.attacks.inversions import inversion_of
from coterie.study.config import study_of
from coterie.study.private import make_guard
from coterie.study.setup import prepare, simulation_of
from support.broken_mechanisms import lessen_noise, stop_clipping
from support.plain_clients import mine

TABLES = {
    "name": "audited",
    "data": {"name": "linear", "clients": 6, "dimension": 3, "samples": 40},
    "model": {"name": "linear", "bias": False},
    "run": {"rounds": 2, "batch_size": 0, "dtype": "float64"},
    "algorithm": [{"name": "fedavg", "lr": 0.05}],
}


def study(*entries, run=None, graph=None, **privacy):
    """The study with these algorithms; without settings of privacy, an ordinary one."""
    tables = {**TABLES, "run": {**TABLES["run"], **(run or {})}}
    tables["algorithm"] = list(entries or TABLES["algorithm"])
    if graph is not None:
        tables["graph"] = {"edges": graph}
    if privacy:
        tables["privacy"] = {"clip": 0.3, **privacy}
    return study_of(tables)


def setup_of(**privacy):
    return prepare(study(**privacy), 0)


# Canaries.


def test_a_client_who_is_out_has_samples_that_teach_the_opposite():
    federation = setup_of().federation
    canaries = canaries_of(federation, "client", 0)
    everybody = canaries.federation_with(torch.ones(6, dtype=torch.bool))
    assert torch.equal(everybody.train.index, federation.train.index)
    some = torch.tensor([True, False, True, True, True, True])
    made = canaries.federation_with(some)
    assert torch.equal(made.train.size, federation.train.size)
    who = torch.arange(6)
    (before, mask), (after, _) = federation.train.rows(who), made.train.rows(who)
    assert torch.equal(made.targets[after[mask]], federation.targets[before[mask]])
    assert torch.equal(after[some], before[some])
    turned = made.features[after[1][mask[1]]]
    assert torch.equal(turned, -2 * federation.features[before[1][mask[1]]])
    held_out, of_made = federation.validation.index, made.validation.index
    own = torch.arange(6).repeat_interleave(federation.validation.size)
    assert torch.equal(of_made[some[own]], held_out[some[own]])
    turned = made.features[of_made[own == 1]]
    assert torch.equal(turned, -2 * federation.features[held_out[own == 1]])


def test_samples_that_are_out_are_missing_and_a_quarter_at_most():
    federation = setup_of().federation
    canaries = canaries_of(federation, "sample", 0)
    count = len(canaries.clients)
    each = torch.bincount(canaries.clients)
    assert torch.equal(each, federation.train.size // 4)
    members = torch.arange(count) % 2 == 0
    made = canaries.federation_with(members)
    lost = torch.bincount(canaries.clients[~members], minlength=6)
    assert torch.equal(made.train.size, federation.train.size - lost)
    assert torch.equal(made.validation.index, federation.validation.index)
    # All but canaries are samples of the client as they were.
    old = made.train.index < len(federation.targets)
    assert int((~old).sum()) == int(members.sum())
    assert set(made.train.index[old].tolist()) <= set(federation.train.index.tolist())


def test_canaries_among_samples_have_the_label_of_the_next_class():
    digits = {"data": {"name": "digits"}, "split": {"name": "iid", "clients": 3}}
    made = study_of({**TABLES, **digits, "model": {"name": "logistic"}})
    federation = prepare(made, 0).federation
    canaries = canaries_of(federation, "sample", 0)
    assert len(canaries.clients) == 3 * 50
    index, _ = federation.train.rows(torch.arange(3))
    left = [
        set(index[k].tolist()) - set(canaries.rest[canaries.owners == k].tolist())
        for k in range(3)
    ]
    for k, replaced in enumerate(left):
        labels = federation.targets[sorted(replaced)]
        others = canaries.federation.targets[canaries.inside[canaries.clients == k, 0]]
        assert sorted((labels + 1) % 10) == sorted(others)


def test_a_client_with_few_samples_cannot_be_audited_by_samples():
    data = {**TABLES["data"], "samples": 4}
    tables = {**TABLES, "data": data, "privacy": {"noise": 1.0, "unit": "sample"}}
    with pytest.raises(InputError, match="clients with at least 4 training samples"):
        audit_study(study_of(tables), runs=8)


def test_what_others_know_of_a_canary_does_not_depend_on_the_own_model():
    setup = setup_of()
    canaries = canaries_of(setup.federation, "client", 0)
    made = prepare(study(), 0, canaries.federation)
    kernel = made.simulation.kernel
    x = torch.randn(6, 3, generator=seeds.generator("x"), dtype=torch.float64)
    other = x.clone()
    other[2] += 1.0
    moved = canaries.others_confidence(kernel, other) != canaries.others_confidence(
        kernel, x
    )
    assert moved.tolist() == [True, True, False, True, True, True]


def test_directions_tell_the_canaries_of_a_client_apart():
    """Along that of another canary, a gradient hardly counts; along its own it does."""
    digits = {"data": {"name": "digits"}, "split": {"name": "iid", "clients": 8}}
    made = study_of({**TABLES, **digits, "model": {"name": "logistic"}})
    setup = prepare(made, 0)
    canaries = canaries_of(setup.federation, "sample", 0)
    kernel = simulation_of(made, canaries.federation, setup.module, 0).kernel
    along = canaries.directions(kernel, setup.x[0])[canaries.clients == 0]
    mine = canaries.inside[canaries.clients == 0]
    point = setup.x[0].expand(len(mine), -1)
    g = kernel.grad(point, Batch(mine, torch.ones_like(mine, dtype=point.dtype)))
    found = along @ (g / g.norm(dim=1, keepdim=True)).T
    size = len(mine)
    others = found[~torch.eye(size, dtype=torch.bool)].abs()
    assert float(found.diagonal().min()) > 5 * float(others.mean())
    plain = (g @ g.T) / g.norm(dim=1)[:, None] / g.norm(dim=1)
    apart = plain[~torch.eye(size, dtype=torch.bool)].abs()
    assert others.mean() / found.diagonal().mean() < apart.mean() / 2


# Listening.


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "fedavg"},
        {"name": "decentralised_sgd"},
        {"name": "karula"},
        {"name": "all_for_one", "weights": "uniform"},
        {"name": "adaptive_all_for_one"},
    ],
)
def test_listening_does_not_change_what_clients_learn(entry):
    made = study(entry)
    setup = prepare(made, 0)
    method = setup.algorithm(made.algorithms[0])
    listener = Listener(torch.arange(6), torch.ones(6, 3, dtype=torch.float64), setup.x)
    found = []
    for clients in (setup.simulation, OverheardClients(setup.simulation, listener)):
        *_, last = run_rounds(method, clients, setup.x, rounds=3)
        found.append(method.personal(last.state, setup.simulation.at(3, purpose="use")))
    assert float((found[0] - found[1]).abs().max()) < 1e-12
    assert len(listener.scores()["sums"]) == 6


def test_a_listener_to_averages_hears_how_far_each_row_moved():
    """By a loop: z_t less the last mean, along a canary's direction."""
    made = study({"name": "fedavg", "lr": 0.05})
    setup = prepare(made, 0)
    u = torch.randn(6, 3, generator=seeds.generator("u"), dtype=torch.float64)
    listener = Listener(torch.arange(6), u, setup.x)
    method = setup.algorithm(made.algorithms[0])
    *_, _ = run_rounds(
        method, OverheardClients(setup.simulation, listener), setup.x, rounds=2
    )
    shares = setup.federation.train.size.double()
    mean, along = setup.x, []
    for t in (1, 2):
        z = mean - 0.05 * setup.simulation.at(t).grads(mean)
        along.append(((z - mean) * u).sum(1))
        mean = (shares @ z / shares.sum()).expand(6, -1)
    found = listener.scores()
    torch.testing.assert_close(found["sums"], along[0] + along[1])
    torch.testing.assert_close(found["changes"], (along[1] - along[0]).square())
    torch.testing.assert_close(found["first"], along[0] - along[1])


def test_a_listener_to_secure_sums_hears_sums_alone():
    made = study()
    setup = prepare(made, 0)
    u = torch.ones(6, 3, dtype=torch.float64)
    listener = Listener(torch.arange(6), u, setup.x, summed=True)
    method = setup.algorithm(made.algorithms[0])
    *_, last = run_rounds(
        method, OverheardClients(setup.simulation, listener), setup.x, rounds=1
    )
    x = method.personal(last.state, setup.simulation.at(1, purpose="use"))
    torch.testing.assert_close(listener.scores()["sums"], (x - setup.x).sum(1))


# Audits.


def test_without_privacy_much_is_proved_and_nothing_was_promised():
    found = audit_study(study(), runs=16)
    assert max(proof.lower for proof in found.proofs) > 1.5
    assert not found.broken and found.unit == "client"
    assert {proof.upper for proof in found.proofs} == {math.inf}
    attacks = {proof.attack for proof in found.proofs}
    by_rows = {f"canaries, {name}" for name in ("sums", "changes", "first")}
    assert attacks == {*by_rows, "shadow models"}
    (inverted,) = found.inversions
    assert inverted.error is None and inverted.without < 1e-3


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_a_sound_study_is_not_disproved(unit):
    found = audit_study(study(epsilon=1.0, unit=unit), runs=16)
    assert not found.broken and found.unit == unit
    for proof in found.proofs:
        assert proof.lower <= proof.upper <= 1.0 + 1e-9 < proof.most
    (inverted,) = found.inversions
    assert inverted.error > 0.5 and inverted.without < 1e-3


def quieter(monkeypatch, factor: float) -> None:
    """Noise of both units is smaller than its ledger says."""
    noised = of_samples.SampleMechanism.add_noise

    def less_of_samples(self, g, keys, who, samples):
        return noised(self, g, keys, who, samples / factor)

    lessen_noise(monkeypatch, factor)
    monkeypatch.setattr(of_samples.SampleMechanism, "add_noise", less_of_samples)


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_half_the_noise_and_missing_clipping_are_caught_and_proved(monkeypatch, unit):
    """From inside, and by chosen canaries: attacks from outside prove less.

    Much noise hides missing clipping from whoever sees only what leaves.
    """
    made = study(epsilon=1.0, unit=unit)

    def audit_again() -> tuple:
        found = audit_study(made, runs=8)
        (check,) = found.checks.values()
        chosen = [proof for proof in found.proofs if "chosen" in proof.attack]
        assert len(chosen) == 1 and chosen[0].upper == pytest.approx(1.0, 1e-3)
        assert chosen[0].lower >= max(proof.lower for proof in found.proofs)
        return found.broken, check, chosen[0].lower

    broken, check, proved = audit_again()
    assert not broken and not check.broken and 0.85 < check.measured < 1.15
    assert 0.7 < check.noticed < 0.85 and check.clips_tested and proved < 1.0
    with monkeypatch.context() as patch:
        quieter(patch, 0.5)
        broken, check, proved = audit_again()
    assert broken and check.quiet and check.measured < 0.6
    assert 1.1 < proved < 2.5  # truly 2.2
    with monkeypatch.context() as patch:
        without_clipping(patch)
        broken, check, proved = audit_again()
    assert broken and check.unclipped and not check.quiet and proved > 5


def without_clipping(monkeypatch) -> None:
    """Rows and gradients of both units leave as long as they are."""

    def kernel(plain, _, loss):
        return ClippedKernel(plain, math.inf, loss)

    stop_clipping(monkeypatch)
    monkeypatch.setattr(simulation, "ClippedKernel", kernel)


GOSSIP = {"name": "decentralised_sgd", "lr": 0.05, "exchanges": 2}


def pair_of(made) -> tuple:
    found = audit_study(made, runs=8)
    (pair,) = [proof for proof in found.proofs if " to " in proof.attack]
    (whole,) = [proof for proof in found.proofs if proof.attack == "chosen rows"]
    return pair, whole


def test_a_receiver_is_audited_against_what_is_printed_of_its_pair(monkeypatch):
    """One round on a star: a leaf hears sums of the others, and less than all."""
    made = study(GOSSIP, run={"rounds": 1}, graph="star", noise=1.0)
    pair, whole = pair_of(made)
    assert 0 < pair.lower < pair.upper < whole.upper and not whole.broken
    account = insiders.by_pairs
    with monkeypatch.context() as broken:  # an account that promises a quarter of mu^2
        broken.setattr(insiders, "by_pairs", lambda *given: account(*given) / 4)
        assert pair_of(made)[0].broken
    quieter(monkeypatch, 0.5)
    pair, _ = pair_of(made)
    assert pair.broken


def test_a_canary_of_which_a_model_is_sure_is_turned_around():
    """The logistic model is right about the first canary of this seed, and so sure."""
    data = {"name": "logistic", "clients": 4, "dimension": 5, "samples": 60}
    tables = {**TABLES, "data": data, "run": {"rounds": 1, "seeds": [12]}}
    tables["model"] = {"name": "linear"}
    privacy = {"clip": 0.1, "noise": 1.0, "unit": "sample"}
    found = audit_study(study_of({**tables, "privacy": privacy}), runs=8)
    (chosen,) = [proof for proof in found.proofs if "chosen" in proof.attack]
    assert 0 < chosen.lower < chosen.upper and not found.broken


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("unit", ["client", "sample"])
def test_what_is_right_is_not_accused_whatever_the_seed(unit, seed):
    entries = [TABLES["algorithm"][0]] + ([GOSSIP] if unit == "client" else [])
    made = study(*entries, run={"rounds": 1, "seeds": [seed]}, epsilon=2.0, unit=unit)
    found = audit_study(made, runs=8)
    assert not found.broken and len(found.checks) == len(entries)


@pytest.mark.parametrize(
    ("entry", "privacy"),
    [
        ({"name": "decentralised_sgd", "lr": 0.05}, {}),
        ({"name": "karula", "radius": "clusters"}, {}),
        ({"name": "all_for_one", "weights": "uniform"}, {}),  # gradients of pairs
        ({"name": "fedavg", "lr": 0.05}, {"aggregation": "secure"}),
    ],
)
def test_noise_of_other_verbs_is_measured_too(monkeypatch, entry, privacy):
    made = study(entry, noise=5.0, run={"rounds": 1}, **privacy)
    (sound,) = audit_study(made, runs=8).checks.values()
    assert not sound.broken and 0.85 < sound.measured < 1.15
    quieter(monkeypatch, 0.5)
    found = audit_study(made, runs=8)
    (check,) = found.checks.values()
    assert check.broken and found.broken


def test_noise_that_is_the_same_in_every_round_is_caught(monkeypatch):
    """It shows only in changes between rounds: in sums, it grows with the rounds."""
    released, first = of_clients.Mechanism.release, {}

    def again(self, x, ref, stream, *rest, **options):
        stream = first.setdefault(self.seed, stream)
        return released(self, x, ref, stream, *rest, **options)

    monkeypatch.setattr(of_clients.Mechanism, "release", again)
    broken = [
        proof.attack
        for proof in audit_study(study(epsilon=0.5), runs=16).proofs
        if proof.broken
    ]
    assert broken == ["canaries, first"]


IFCA = {"name": "ifca", "lr": 0.01, "starts": 1}


def with_losses_as_they_are(monkeypatch) -> None:
    """Losses leave without bound and without noise, and the ledger does not say so."""

    def of_client(self, losses, who):
        self.asked += 1
        return losses.nanmean(1), losses

    def of_samples_(self, losses, keys, who, *, held_out):
        return losses.nanmean(1), losses

    monkeypatch.setattr(telling.Questions, "release", of_client)
    monkeypatch.setattr(of_samples.SampleMechanism, "add_noise_to_losses", of_samples_)
    monkeypatch.setattr(
        simulation, "ClippedKernel", lambda kernel, clip, _: ClippedKernel(kernel, clip)
    )


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_losses_without_bound_and_noise_are_caught(monkeypatch, unit):
    """For the unit sample, one training sample of each client is a canary."""
    for module in (foreseen, methods):  # one scenario is enough, and quick
        monkeypatch.setattr(module, "SCENARIOS", 1)
    monkeypatch.setattr(scenarios, "_ROUNDS", 1)
    data = {**TABLES["data"], "clients": 12, "samples": 12}
    privacy = {"clip": 0.3, "noise": 200.0, "unit": unit}
    tables = {**TABLES, "data": data, "algorithm": [IFCA], "privacy": privacy}
    tables["run"] = {**TABLES["run"], "rounds": 1}
    assert not audit_study(study_of(tables), runs=8).broken
    with_losses_as_they_are(monkeypatch)
    found = audit_study(study_of(tables), runs=8)
    broken = {proof.attack for proof in found.proofs if proof.broken}
    assert "canaries, losses" in broken


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("unit", ["client", "sample"])
def test_losses_with_a_canary_and_without_are_those_of_a_loop(unit, held_out):
    setup = setup_of()
    canaries = canaries_of(setup.federation, unit, 0)
    made = canaries.federation
    kernel = simulation_of(study(), made, setup.module, 0).kernel
    x = torch.randn(3, generator=seeds.generator("x"), dtype=torch.float64)
    inside, outside = canaries.losses_at(kernel, x, held_out=held_out)
    gaps = (made.features.double() @ x - made.targets.double().flatten()).square()
    objective = setup.simulation.objective.loss(torch.ones(1, 1), torch.zeros(1, 1))
    gaps = gaps * float(objective)

    def losses_of(federation, client):
        return gaps[mine(federation, client, "validation" if held_out else "train")]

    for j, client in enumerate(canaries.clients.tolist()):
        coin = torch.zeros(len(canaries.clients), dtype=torch.bool)
        without = losses_of(canaries.federation_with(coin), client)
        coin[j] = True
        within = losses_of(canaries.federation_with(coin), client)
        if unit == "client" or held_out:
            both = within.mean(), without.mean()
        else:  # other canaries of this client count half
            mates = canaries.inside[canaries.clients == client][:, 0]
            mates = gaps[mates[mates != canaries.inside[j, 0]]]
            total = without.sum() + mates.sum() / 2
            count = len(without) + len(mates) / 2
            own = gaps[canaries.inside[j, 0]]
            both = (total + own) / (count + 1), total / count
        torch.testing.assert_close(
            torch.stack([inside[j], outside[j]]), torch.stack(both)
        )


def test_losses_of_models_that_all_have_tell_canaries_apart():
    """Two canaries of one client, three questions without noise, all others known."""
    gaps = torch.tensor([[1.0, 0.5], [0.2, -1.0], [0.7, 0.9]], dtype=torch.float64)

    def losses_at(point, *, held_out):
        gap = gaps[int(point[0])]
        return 3 + gap / 2, 3 - gap / 2

    x = torch.zeros(2, 1, dtype=torch.float64)
    listener = Listener(torch.tensor([1, 1]), x, x, losses_at=losses_at)
    coins = torch.tensor([0.5, -0.5], dtype=torch.float64)
    for question, gap in enumerate(gaps):
        told = torch.stack([torch.tensor(9.0).double(), 3 + gap @ coins])
        points = torch.full((2, 1), question).double()
        listener.loss(torch.tensor([0, 1]), points, told, held_out=False)
        points[0] += 0.1  # models of their own, of which nothing is known
        listener.loss(torch.tensor([0, 1]), points, told + 1, held_out=False)
    torch.testing.assert_close(listener.scores()["losses"], coins, rtol=0.01, atol=0)


def test_a_listener_hears_the_losses_that_clients_tell(monkeypatch):
    """As often as the ledger says, and the sum of all that a client told."""
    for module in (foreseen, methods):
        monkeypatch.setattr(module, "SCENARIOS", 1)
    made = study(IFCA, noise=3.0)
    setup = prepare(made, 0)
    u = torch.ones(6, 3, dtype=torch.float64)
    listener, told = Listener(torch.arange(6), u, setup.x), []

    def listens(algorithm):
        hears = telling_losses_to(listener, algorithm)
        loss = listener.loss

        def note(who, points, means, held_out):
            told.append(means.clone())
            loss(who, points, means, held_out=held_out)

        listener.loss = note
        return hears

    guard = make_guard(setup, made.algorithms[0], listens)
    *_, last = run_rounds(guard.method, setup.simulation, setup.x, rounds=2)
    events = events_of(last.state.ledger)
    asked = sum((e.sensitivity / e.noise) ** 2 for e in events if e.verb == LOSSES)
    assert len(told) == round(asked / (2 / 3.0) ** 2) > 2
    scores = listener.scores()
    torch.testing.assert_close(scores["sum of losses"], sum(told))


def test_who_trains_alone_tells_nothing():
    found = audit_study(study({"name": "local"}, epsilon=1.0), runs=8)
    (proof,) = found.proofs
    assert (proof.attack, proof.lower, proof.upper) == ("shadow models", 0.0, 0.0)
    assert not found.inversions


def test_in_time_models_of_others_are_attacked():
    tables = {
        **TABLES,
        "algorithm": [{"name": "server_sgd", "lr": 0.02}],
        "time": {},
        "privacy": {"clip": 0.3, "noise": 50.0},
    }
    found = audit_study(study_of(tables), runs=8)
    assert [proof.attack for proof in found.proofs] == ["shadow models"]
    assert 0 < found.proofs[0].upper < 10 and not found.broken


def test_samples_come_back_through_a_small_network_and_noise_hides_them():
    tables = {**TABLES, "model": {"name": "mlp", "hidden": [8]}}
    noisy = study_of({**tables, "privacy": {"noise": 5.0}})
    found = inversion_of(prepare(noisy, 0), noisy.algorithms[0])
    assert found.without < 1e-6 and found.error > 0.5


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "fedavg", "lr": 0.05},
        {"name": "decentralised_sgd", "lr": 0.05},
        {"name": "all_for_all", "weights": "uniform"},  # gradients, not models
        {"name": "all_for_one", "weights": "uniform"},
    ],
)
@pytest.mark.parametrize(
    "privacy", [{"unit": "client"}, {"unit": "sample"}, {"aggregation": "secure"}]
)
def test_what_is_rebuilt_is_what_a_training_released(monkeypatch, entry, privacy):
    """Noise that a mechanism forgets hides nothing, whatever is promised."""
    if "aggregation" in privacy and entry["name"] != "fedavg":
        pytest.skip("only one average has secure sums")
    made = study(entry, noise=20.0, **privacy)
    sound = inversion_of(prepare(made, 0), made.algorithms[0])
    assert sound.without < 1e-3 and sound.error > 0.5
    quieter(monkeypatch, 1e-9)
    broken = inversion_of(prepare(made, 0), made.algorithms[0])
    assert broken.without < 1e-3 and broken.error < 1e-3


def test_the_same_audit_twice_gives_the_same():
    first, second = (audit_study(study(noise=3.0), runs=8) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"runs": 7}, "`runs` must be at least 8, got 7"),
        ({"confidence": 1.0}, "`confidence` must be less than 1, got 1"),
    ],
)
def test_bad_settings_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        audit_study(study(), **given)


def test_settings_that_would_be_searched_are_refused():
    with pytest.raises(InputError, match="with known settings: leave"):
        audit_study(study_of({**TABLES, "tune": {"trials": 2}}))

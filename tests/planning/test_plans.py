"""`coterie plan`: noise and biases from a pilot, and what they promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
import torch
from typer.testing import CliRunner

import coterie as co
from coterie.checks import InputError
from coterie.cli.commands import app
from coterie.data.federation import Federation, Part
from coterie.data.splits import divide
from coterie.data.synthetic import linear
from coterie.engine.clocks import clock
from coterie.models import build, ravel
from coterie.planning import pilot, plans
from coterie.planning.plans import plan_study
from coterie.planning.prospects import PilotFindings, prospects_of, structure_of
from coterie.planning.waiting import waiting_of
from coterie.similarity.samples import deal_samples
from coterie_theory.asynchrony import speed_up
from coterie_theory.collaboration import count_near
from support.called import called
from support.refusals import refusal, refuses


def exact_findings(
    place: np.ndarray, *, noise: float = 1.0, floor: float = 1e-6
) -> PilotFindings:
    """Findings without error about gradients at these places; samples: 1 each."""
    n = len(place)
    squared = ((place[:, None] - place) ** 2).sum(2)
    return PilotFindings(
        squared, np.full(n, floor), np.full(n, noise), 100.0, np.ones(n)
    )


def test_equal_clients_gain_their_number():
    found = prospects_of(exact_findings(np.zeros((7, 2))))
    np.testing.assert_allclose(found.likely.gain, 7, rtol=1e-4)
    np.testing.assert_allclose(found.likely.weights, 1 / 7, rtol=1e-3)


def test_strangers_gain_nothing():
    place = 1e3 * np.eye(5)
    found = prospects_of(exact_findings(place))
    np.testing.assert_allclose(found.likely.gain, 1, rtol=1e-4)
    np.testing.assert_allclose(found.likely.weights, np.eye(5), atol=1e-4)


def test_least_risk_and_weights_are_those_of_a_general_solver():
    rng = np.random.default_rng(0)
    place = rng.normal(size=(6, 3))
    noise = rng.uniform(0.5, 2.0, size=6)
    found = prospects_of(exact_findings(place)._replace(variance=noise))
    for i in range(6):

        def risk(w: np.ndarray, i: int = i) -> float:
            return float(((w @ place - place[i]) ** 2).sum() + (w**2 * noise).sum())

        best = scipy.optimize.minimize(
            risk,
            np.full(6, 1 / 6),
            bounds=[(0, 1)] * 6,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            options={"ftol": 1e-12},
        )
        # SLSQP stops at about the root of its tolerance.
        np.testing.assert_allclose(noise[i] / found.likely.gain[i], best.fun, rtol=1e-4)
        np.testing.assert_allclose(found.likely.weights[i], best.x, atol=1e-3)


def test_gain_is_at_least_what_the_theorem_promises():
    """Uniform weights over the N_i who are near are one way to weigh, not the best."""
    rng = np.random.default_rng(1)
    place = np.repeat(rng.normal(size=(3, 2)), 4, 0) + 0.1 * rng.normal(size=(12, 2))
    found = exact_findings(place)
    eps = 0.5  # biases of at most a half, in units of the noise
    near = count_near(torch.tensor(found.squared), eps).numpy()
    promised = 1 / (1 / near + eps)
    assert (prospects_of(found).likely.gain >= 0.999 * promised).all()


def test_own_differences_bound_the_gain():
    """|t_i|^2 = q and noise 1: weight 1 - a for oneself, the rest for n - 1 others.

    The risk (1 - a)^2 + a^2 k with k = q + (1 + q) / (n - 1) is least at k / (1 + k).
    """
    n, q = 40, 0.5
    own = np.random.default_rng(0).normal(size=(n, 2000))
    own *= np.sqrt(q) / np.linalg.norm(own, axis=1, keepdims=True)
    # The floor hides directions, as few samples would; q is seen on the diagonal.
    found = exact_findings(own, floor=0.1)
    shape = structure_of(found)
    assert shape.place.shape[1] == 0
    # Random directions have products of some sqrt(1 / 2000).
    np.testing.assert_allclose(shape.own, q, rtol=0.03)
    k = q + (1 + q) / (n - 1)
    gain = prospects_of(found).likely.gain
    np.testing.assert_allclose(gain, (1 + k) / k, rtol=0.03)


def noisy_findings(
    place: np.ndarray, dimension: int, seed: int, m: int = 50
) -> PilotFindings:
    """Findings as from halves of m samples with unit covariance."""
    rng = np.random.default_rng(seed)
    n = len(place)
    theta = np.pad(place, ((0, 0), (0, dimension - place.shape[1])))
    a, b = theta + rng.normal(size=(2, n, dimension)) * np.sqrt(2 / m)
    products = a @ b.T
    own = products.diagonal()
    return PilotFindings(
        own[:, None] + own - products - products.T,
        np.full(n, 2 / m * np.sqrt(dimension)),
        np.full(n, float(dimension)),
        float(dimension),
        np.full(n, float(m)),
    )


def test_noise_alone_shows_no_directions_and_intervals_hold_the_truth():
    held, directions = 0, 0
    for seed in range(40):
        found = noisy_findings(np.zeros((8, 1)), 20, seed)
        directions += structure_of(found).place.shape[1] > 0
        low, _, high = prospects_of(found).mean
        held += low <= 8 <= high * 1.0001
    # 90 per cent intervals: fewer than 32 of 40 has a chance of 1.5 per cent.
    assert held >= 32
    assert directions <= 4


def test_planted_clusters_are_found():
    place = np.repeat([[0.0], [2.0]], 6, 0)
    found = noisy_findings(place, 20, seed=0)
    weights = prospects_of(found).likely.weights
    inside = weights[:6, :6].sum(1)
    assert structure_of(found).place.shape[1] == 1
    assert (inside > 0.9).all()  # without noise .984: 1 / 15 against 4 + 1 / 15


def regression_data(seed: int = 0, **options: float) -> Federation:
    """Linear regression with noise, natural clients, all samples for training."""
    table = linear(seed=seed, **{"clusters": 1, "spread": 1.0, "noise": 1.0, **options})
    return divide(table, "natural", seed=seed, validation=0.01, test=0.01)


def findings_of(federation: Federation, seed: int = 0) -> PilotFindings:
    d = federation.features.shape[1]
    module = build(lambda: torch.nn.Linear(d, 1, bias=False), seed)
    return pilot.run_pilot(
        federation,
        lambda part: co.Simulation(part, module, batch_size=0, seed=seed),
        pilot.PilotTraining(ravel(module), lr=0.3, steps=1, rounds=8, seed=seed),
    ).findings


def test_pilot_estimates_distances_of_a_linear_model():
    """The loss |x'w - y|^2 has Hessian 2 I, so that |g_i - g_j| = 2 |w_i - w_j|."""
    federation = regression_data(
        clients=6, clusters=2, dimension=5, samples=1500, spread=0.5
    )
    found = findings_of(federation)
    truth = 4 * torch.cdist(federation.optima, federation.optima).square().numpy()
    apart = ~np.eye(6, dtype=bool)
    # Of the floor of both, and twice the distance times its noise; of fifteen pairs one
    # in 25 draws is beyond three standard errors, one in a thousand beyond four.
    error = 2 * found.floor.mean() + 4 * np.sqrt(truth * found.floor.mean())
    assert (np.abs(found.squared - truth) < 4 * error)[apart].all()


def test_pilot_estimates_the_variance_of_gradients_of_a_linear_model():
    """At the best model residuals r have variance 1 and g is 2 r x: 4 d."""
    federation = regression_data(clients=6, dimension=20, samples=300, spread=0.0)
    found = findings_of(federation)
    # 240 squares say it to 9 per cent, the model's own error adds 20 / 900.
    np.testing.assert_allclose(found.variance, 80, rtol=0.3)


def with_sizes(federation: Federation, sizes: list[int]) -> Federation:
    """The federation with this number of training samples per client."""
    index, _ = federation.train.rows(torch.arange(len(federation)))
    size = torch.tensor(sizes)
    kept = torch.cat([index[i, :m] for i, m in enumerate(sizes)])
    return replace(federation, train=Part(kept, size.cumsum(0) - size, size))


def least_squares(federation: Federation, weights: np.ndarray) -> np.ndarray:
    """|w_i - w_i^*|^2 of every client's weighted least squares."""
    grams, sides = [], []
    for i in range(len(federation)):
        index = federation.train.rows(torch.tensor([i]))[0][0]
        x, y = federation.features[index].numpy(), federation.targets[index].numpy()
        grams.append(x.T @ x / len(x))
        sides.append(x.T @ y / len(x))
    mixed = np.einsum("ij,jde->ide", weights, np.array(grams))
    w = np.linalg.solve(mixed, (weights @ np.array(sides))[..., None])[..., 0]
    return ((w - federation.optima.numpy()) ** 2).sum(1)


@pytest.mark.parametrize(
    ("sizes", "clusters", "spread", "variation"),
    [
        ([100] * 10, 1, 0.0, 0.0),
        ([100] * 10, 1, 0.0, 0.05),
        ([100] * 10, 2, 2.0, 0.0),
        ([100] * 10, 1, 0.0, 0.5),
        ([500] + [60] * 9, 1, 0.0, 0.1),
    ],
    ids=["equal", "alike", "clusters", "different", "one large"],
)
def test_predicted_speed_up_is_the_measured_one_within_a_factor_of_two(
    sizes, clusters, spread, variation
):
    alone, gained, promised = [], [], []
    for seed in range(3):
        whole = regression_data(
            seed,
            clients=10,
            clusters=clusters,
            dimension=10,
            samples=max(sizes) + 20,
            spread=spread,
            variation=variation,
        )
        federation = with_sizes(whole, sizes)
        found = prospects_of(findings_of(federation, seed)).likely
        mine = np.array(sizes) <= 100
        alone.append(least_squares(federation, np.eye(10))[mine])
        gained.append(least_squares(federation, found.weights)[mine])
        promised.append(1 / np.mean(1 / found.gain[mine]))
    assert 0.5 < np.mean(alone) / np.mean(gained) / np.mean(promised) < 2


@pytest.mark.parametrize("n", [2, 4, 10])
def test_the_noise_floor_is_that_of_the_gradients(n):
    """Unequal sizes: f_i is the standard deviation of <a_i, b_i> for centred halves."""
    dimension = 30
    sizes = np.array([400] + [40] * (n - 1))
    looks, products = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        parts = rng.normal(size=(2, n, dimension)) / np.sqrt(sizes / 4)[:, None]
        looks.append(stub_look(parts, sizes / 4).floor.numpy())
        products.append((parts[0] * parts[1]).sum(1))
    truth = np.sqrt(dimension) * 4 / sizes
    np.testing.assert_allclose(np.std(products, 0), truth, rtol=0.35)
    # Its square is what is right on average; 60 squares of normal products.
    rms = np.sqrt(np.mean(np.square(looks), 0))
    np.testing.assert_allclose(rms, truth, rtol=0.35)


class Stub:
    """A part of every client's samples, whose gradients are given."""

    def __init__(self, gradients: np.ndarray) -> None:
        self._g = torch.from_numpy(gradients)

    def __len__(self) -> int:
        return len(self._g)

    def at(self, t: int, active=None, *, purpose="step"):
        return self

    def each(self, program: object, *rows: torch.Tensor) -> tuple[torch.Tensor]:
        return (self._g,)


def stub_look(parts: np.ndarray, sizes: np.ndarray) -> pilot.GradientComparison:
    x = torch.zeros(parts.shape[1:], dtype=torch.float64)
    groups = torch.zeros(len(x), dtype=torch.long)
    both = torch.from_numpy(sizes), torch.from_numpy(sizes)
    return pilot.compare_gradients(Stub(parts[0]), Stub(parts[1]), x, groups, both)


def test_intervals_hold_the_truth_also_of_few_clients():
    """90 per cent intervals of the mean, from two looks at equal clients."""
    for n in (2, 4, 10):
        held = 0
        for seed in range(60):
            rng = np.random.default_rng(seed)
            sizes, d = np.full(n, 25.0), 40
            looks = [stub_look(rng.normal(size=(2, n, d)) / 5, sizes) for _ in range(2)]
            found = pilot.combine_comparisons(torch.full((n,), 100), looks)
            low, _, high = prospects_of(found).mean
            held += low <= n <= 1.001 * high
        # With 90 per cent, fewer than 48 of 60 has a chance of 1 per cent.
        assert held >= 48, n


def test_three_clients_with_few_samples_cannot_be_told_apart():
    low, _, high = prospects_of(
        findings_of(regression_data(clients=3, dimension=3, samples=12))
    ).mean
    assert high > 1.5 * low


def test_values_are_drawn_together_where_looks_of_a_client_differ_as_much():
    rng = np.random.default_rng(0)
    chance = np.exp(rng.normal(size=(2, 200)))
    drawn = pilot.shrink_to_mean(chance)
    assert drawn.std() < 0.3 * chance.mean(0).std()
    np.testing.assert_allclose(drawn.mean(), chance.mean(), rtol=1e-12)
    real = np.exp(rng.normal(size=200))
    np.testing.assert_allclose(
        pilot.shrink_to_mean(np.stack([real, real])), real, rtol=1e-12
    )


def test_parts_have_every_sample_once():
    federation = regression_data(clients=3, dimension=2, samples=15)
    parts = deal_samples(federation, 4)
    assert sorted(torch.cat([part.train.index for part in parts]).tolist()) == sorted(
        federation.train.index.tolist()
    )
    both = pilot.union_of(*parts[:2])
    everybody = torch.arange(3)
    index, mask = both.train.rows(everybody)
    for i in range(3):
        mine = {int(j) for j in index[i][mask[i]]}
        pieces = [part.train.rows(everybody) for part in parts[:2]]
        assert mine == {int(j) for rows, kept in pieces for j in rows[i][kept[i]]}


def test_gradients_without_noise_are_refused():
    refuses("all gradients are the same", pilot.shrink_to_mean, np.zeros((2, 5)))


STUDY = """
name = "small"
[data]
name = "linear"
clients = 6
clusters = 2
dimension = 3
samples = 60
noise = 1.0
[split]
name = "natural"
[model]
name = "linear"
bias = false
[run]
rounds = 8
seeds = [3]
batch_size = 0
[[algorithm]]
name = "all_for_one"
lr = 0.2
"""


@pytest.fixture
def study_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    return path


def invoke(*arguments: object):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A folder with a study and, in here/, its plan; and what the command said."""
    folder = tmp_path_factory.mktemp("planned")
    study = folder / "study.toml"
    study.write_text(STUDY)
    return folder, invoke("plan", study, "--quiet", "--out", folder / "here")


def test_the_command_prints_and_writes_a_plan_for_a_study_to_use(planned, monkeypatch):
    folder, result = planned
    monkeypatch.chdir(folder)
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert "Mean RMSE: " in words and "all intervals are of 90 %" in words
    page = (folder / "here/plan.html").read_text()
    assert page.index("Mean RMSE") < page.index("RMSE alone")
    assert page.index("RMSE alone") < page.rindex("Who gains")
    assert "Plotly.newPlot" in page
    weights = 'algorithm.all_for_one.weights="here/weights.csv"'
    again = invoke("run", "study.toml", "--quiet", "--set", weights)
    assert again.exit_code == 0, again.output


@pytest.mark.browser
@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_the_page_of_a_plan_fits_a_phone_and_a_desk(browser, planned, width, dark):
    page = planned[0] / "here/plan.html"
    probe = """return [over(document.documentElement), all(".main-svg").length > 1,
        all("figcaption").map((caption) => caption.textContent),
        getComputedStyle(document.body).backgroundColor]"""
    over, drawn, captions, paper = browser.seen(page, probe, width=width, dark=dark)
    assert (over, drawn) == (0, True)
    titles = ["Expected RMSE alone and together, with 90 % intervals"]
    assert captions == [*titles, "Suggested weights"]
    assert paper == ("rgb(22, 22, 22)" if dark else "rgb(255, 255, 255)")


@pytest.mark.parametrize("name", ["plan.csv", "weights.csv", "plan.html"])
def test_a_plan_replaces_nothing_unless_it_is_forced_to(study_file, tmp_path, name):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / name).write_text("mine")
    words = ("plan", study_file, "--quiet", "--out", tmp_path / "old")
    rule = f"{name} exists: name another file, or use --force."
    assert refusal(called, *map(str, words)).endswith(rule)
    assert [path.name for path in (tmp_path / "old").iterdir()] == [name]
    assert (tmp_path / "old" / name).read_text() == "mine"
    if name == "plan.csv":
        assert invoke(*words, "--force").exit_code == 0
        assert (tmp_path / "old" / name).read_text() != "mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epsilon", "1", "--lr", "0.1"], "--lr is for a plan without --epsilon"),
        (["--epsilon", "1", "--steps", "2"], "--steps is for a plan without"),
        (["--epsilon", "1", "--rounds", "2"], "--rounds is for a plan without"),
        (["--epsilon", "1", "--samples", "9"], "--samples is for a plan without"),
        (["--epsilon", "1", "--seed", "0"], "--seed is for a plan without"),
        (["--epsilon", "1", "--out", "x"], "--out is for a plan without"),
        (["--epsilon", "1", "--times", "x"], "--times is for a plan without"),
        (["--graph", "ring", "--lr", "0.1"], "--lr is for a study, not for --graph"),
        (["--graph", "ring", "--out", "x"], "--out is for a study, not for --graph"),
        (["--graph", "ring", "--set", "a=1"], "--set is for a study, not for --graph"),
        (["--force"], "--force needs --out"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(study_file, words, message):
    study = [] if "--graph" in words else [str(study_file)]
    said = refusal(called, "plan", *study, "--quiet", *words)
    assert said.startswith(message)


def test_a_plan_is_the_same_again_and_does_not_see_test_data(study_file, monkeypatch):
    study = co.read_study(study_file)
    first = plan_study(study)

    from coterie.study import setup

    honest = setup.divide_table

    def garbled(study, table, seed):
        federation = honest(study, table, seed)
        targets = federation.targets.clone()
        targets[federation.test.index] = 1e6
        targets[federation.validation.index] = -1e6
        return replace(federation, targets=targets)

    monkeypatch.setattr(setup, "divide_table", garbled)
    assert plan_study(study).table().equals(first.table())


def test_more_samples_make_biases_matter_more(study_file):
    study = co.read_study(study_file, ["data.variation=0.3", "data.clusters=1"])
    now, later = plan_study(study), plan_study(study, samples=10_000)
    assert later.outlook.worth[1, -1] <= now.outlook.worth[1, -1]
    assert later.table()["samples"].eq(10_000).all()
    assert (later.table()["alone"] < now.table()["alone"]).mean() > 0.5


def digits(split: str, clients: int, **run: object) -> co.Study:
    """Logistic regression on the digits, trained for a short while."""
    return co.study_of(
        {
            "name": "digits",
            "data": {"name": "digits"},
            "split": {"name": split, "clients": clients},
            "model": {"name": "logistic"},
            "run": {"rounds": 10, "seeds": [0], "batch_size": 0, **run},
            "algorithm": [{"name": "fedavg", "lr": 0.5, "steps": 3}],
        }
    )


def test_a_plan_counts_the_steps_of_epochs(monkeypatch):
    """Two epochs are twice the mean number of minibatches of a client."""
    study = digits("dirichlet", 6, batch_size=8, rounds=1)
    entry = replace(study.algorithms[0], options={"lr": 0.5, "epochs": 2})
    found = []

    def stop(setup, train):
        found.extend([setup.federation.train.size, train.steps])
        raise KeyboardInterrupt

    monkeypatch.setattr(plans, "_run_pilot_and_trial", stop)
    with pytest.raises(KeyboardInterrupt):
        plan_study(replace(study, algorithms=(entry,)))
    sizes, steps = found
    batches = [-(-size // 8) for size in sizes.tolist()]
    assert len(set(batches)) > 1
    assert steps == round(2 * sum(batches) / len(batches))


def test_clients_who_label_alike_join_each_other():
    """Even and odd clients name the digits differently: the right partners, and join.

    In truth six clients are alike.
    """
    plan = plan_study(digits("label_swap", 12))
    table = plan.table()
    assert plan.verdict == "join"
    assert (table["verdict"] == "join").mean() > 0.5
    assert plan.summary()[0].startswith("Join: very likely worth it.")
    for row in table.to_dict("records"):
        alike = [int(k) for k in row["partners"].split(", ") if k]
        assert {k % 2 for k in alike[:2]} <= {row["client"] % 2}
        assert row["alone_least"] <= row["alone"] <= row["alone_most"]
        assert row["worth_most"] <= 12.001  # nobody has more than everyone's samples
    turned = plan.weights[1::2][:, ::2].sum(1)
    assert (turned < 0.2).all()
    joined = table[table["verdict"] == "join"]
    assert (joined["together"] > joined["alone"]).all()


def test_equal_clients_join():
    plan = plan_study(digits("iid", 8))
    assert plan.verdict == "join"
    assert plan.table()["verdict"].eq("join").all()


def test_where_everybody_labels_in_a_way_of_its_own_nobody_joins(monkeypatch):
    """And what the weights would cost, the trial has seen: they are not suggested."""
    from coterie.study import setup

    honest = setup.divide_table

    def renamed(study, table, seed):
        federation = honest(study, table, seed)
        targets = federation.targets.clone()
        for i in range(len(federation)):
            order = torch.randperm(10, generator=torch.Generator().manual_seed(i))
            for part in (federation.train, federation.validation, federation.test):
                mine = part.rows(torch.tensor([i]))[0][0]
                targets[mine] = order[federation.targets[mine]]
        return replace(federation, targets=targets)

    monkeypatch.setattr(setup, "divide_table", renamed)
    plan = plan_study(digits("iid", 8))
    assert plan.verdict == "do not join"
    assert not plan.table()["verdict"].eq("join").any()
    assert (plan.weights.diagonal() > 0.9).all()


def test_nine_different_regressions_are_not_hurt(study_file):
    """Weighted least squares with the suggested weights, against the true models."""
    study = co.read_study(
        study_file, ["data.clients=9", "data.clusters=9", "data.spread=1.0"]
    )
    for seed in (3, 4):
        plan = plan_study(study, seed=seed)
        federation = co.study.federation_of(study, seed)
        alone, mixed = (
            least_squares(federation, weights).mean()
            for weights in (np.eye(9), plan.weights)
        )
        assert plan.verdict != "join"
        assert mixed <= 1.02 * alone


def test_samples_to_collect_are_named_where_the_pilot_cannot_tell(study_file):
    plan = plan_study(co.read_study(study_file, ["data.clusters=1", "data.samples=30"]))
    table = plan.table()
    told = table["verdict"] != "collect first"
    assert (table.loc[told, "collect"] == 0).all()
    asked = table[table["collect"] > 0]
    assert (asked["collect"] > asked["samples"]).all()
    assert (asked["collect"] <= 10 * asked["samples"]).all()


def test_waiting_costs_what_table_3_2_says_for_equal_tasks():
    seconds = [1.0, 2.0, 4.0]
    found = waiting_of(clock("constant(1)", speeds=seconds), 3)
    assert found.round == 4
    assert found.speed_up == pytest.approx(speed_up(torch.tensor(seconds)))
    assert found.idle.tolist() == pytest.approx([0.75, 0.5, 0.0])
    assert found.weights.tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7])


def test_times_that_vary_make_rounds_longer():
    """The mean of the larger of two exponential times of mean 1 is 3 / 2."""
    found = waiting_of(clock("exponential(1)"), 2)
    assert found.round == pytest.approx(1.5, rel=0.1)  # 1,000 rounds: 3 per cent
    assert found.speed_up == pytest.approx(1.5, rel=0.1)


def test_the_command_says_what_asynchrony_would_save(study_file):
    rows = [f"{i},{c},{10.0 if i == 5 else 1.0}" for i in range(6) for c in range(3)]
    times = study_file.parent / "times.csv"
    times.write_text("\n".join(["client,number,seconds", *rows]))
    result = invoke("plan", study_file, "--quiet", "--times", times)
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    # Five of six wait for nine tenths; (5 x 10 + 1) / 6 = 8.5.
    assert "A round takes 10 s, in which clients wait for 75.0 % of their time" in words
    assert "8.5 times as many gradients" in words
    assert "client 5, then has weight 0.02" in words  # 1 / 51
    times.write_text("client,number,seconds\n0,0,-1")
    result = invoke("plan", study_file, "--quiet", "--times", times)
    assert isinstance(result.exception, InputError)
    times.write_text("client,number,seconds\n0,0,1")
    result = invoke("plan", study_file, "--quiet", "--times", times)
    assert "clients 0 to 5" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lr", "0"], "`lr` must be greater than 0"),
        (["--rounds", "0"], "`rounds` must be"),
        (["--samples", "-1"], "`samples` must be"),
        (["--seed", "-1"], "`seed` must be"),
        (["--steps", "0"], "`steps` must be"),
        (["--lr", "1e6"], "use a smaller step size"),
        (["--set", "data.samples=9"], "at least 8 training samples"),
    ],
)
def test_bad_input_is_one_sentence(study_file, arguments, words):
    result = invoke("plan", study_file, "--quiet", *arguments)
    assert result.exit_code != 0
    assert isinstance(result.exception, (InputError, co.TrainingError))
    assert words in str(result.exception)
    assert not (study_file.parent / "runs").exists()

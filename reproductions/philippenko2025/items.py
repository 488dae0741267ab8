"""The figures and tables of Philippenko et al. (2025), and whether ours agree."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import coterie as co
from coterie.cli import Claim, Line, Panel, draw_panels, lead, run_with_progress
from coterie.collaboration import binary
from coterie.seeds import generator
from coterie_theory import all_for_one

HERE = Path(__file__).parent
EXPECTED = tomllib.loads((HERE / "expected.toml").read_text())
MORE_SEEDS = [127, 496, 1729, *range(1, 10)]


def fig1(overrides: Sequence[str]) -> list[Claim]:
    """Size of the sufficient cluster against precision (theory, seconds)."""
    del overrides
    n, d = 20, 10
    rng = generator(127, "figure 1")
    directions = torch.randn(n, d, generator=rng, dtype=torch.float64)
    eye = torch.eye(d, dtype=torch.float64).expand(n, d, d)
    grid = 10.0 ** np.linspace(-5, 1, 25)
    sizes = {}
    for v in (0.001, 0.01, 0.1, 1.0):
        b, c = all_for_one.quadratic_heterogeneity(eye, v * directions)
        # A = I: R_i(x) = |x + xi_i|^2 is 2-strongly convex.
        sizes[v] = np.array(
            [
                all_for_one.sufficient_cluster(b, c, binary(0.1), mu=2.0, eps=eps)[0]
                .sum()
                .item()
                for eps in grid
            ]
        )
    lines = [Line(f"v = {v:g}", grid.tolist(), s.tolist()) for v, s in sizes.items()]
    labels = "Figure 1", "precision eps", "size of the sufficient cluster"
    draw_panels(page("fig1", "figure1"), [Panel(lines, *labels, log_x=True)])
    shown = {v: " ".join(str(k) for k in s[::4]) for v, s in sizes.items()}
    table = "; ".join(f"v={v:g}: {text}" for v, text in shown.items())
    ordered = all(
        (sizes[a] >= sizes[b]).all()
        for a, b in ((0.001, 0.01), (0.01, 0.1), (0.1, 1.0))
    )
    growing = all((np.diff(s) >= 0).all() for s in sizes.values())
    return [
        Claim(
            "sizes for eps = 1e-5, 1e-4, ..., 10",
            "a figure",
            table,
            growing,
            "grows with eps",
        ),
        Claim("lower v, larger cluster", "yes", str(ordered), ordered),
        Claim(
            "v=.001: global except for very small eps",
            "20, then fewer",
            f"{sizes[0.001][-1]} at eps=10, {sizes[0.001][0]} at 1e-5",
            sizes[0.001][8] == n and sizes[0.001][0] < n,
        ),
        Claim(
            "v=1: collaboration vanishes at once",
            "1",
            f"{sizes[1.0][-5]} at eps=1, {sizes[1.0][-1]} at eps=10",
            sizes[1.0][-5] == 1,
            "b is squared and twice the printed one: docs/errata.md",
        ),
    ]


def fig2(overrides: Sequence[str]) -> list[Claim]:
    """Distance to the optimum on two synthetic clusters, d = 2 and d = 10 (minutes)."""
    claims, panels = [], []
    for d in (2, 10):
        settings = [f"run.seeds={MORE_SEEDS}", *overrides]
        study = co.read_study(HERE / f"fig2_d{d}.toml", settings)
        errors = log_distance(run_with_progress(study).records.metrics)
        panels.append(panel_of_figure_2(d, errors))
        claims += _table_of_figure_2(d, errors)
        claims += _claims_of_figure_2(d, errors)
    draw_panels(page("fig2", "figure2"), panels)
    return claims


def page(item: str, name: str) -> Path:
    """Where an item writes a picture; makes the folder."""
    folder = Path("runs") / f"philippenko2025-{item}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.html"


def panel_of_figure_2(d: int, errors: pd.DataFrame) -> Panel:
    """The mean over seeds of log10 of the squared distance, against rounds."""
    mean = errors.groupby(["algorithm", "round"], sort=False)["error"].mean()
    lines = [
        Line(name, curve.index.get_level_values("round").tolist(), curve.tolist())
        for name, curve in mean.groupby(level="algorithm", sort=False)
    ]
    return Panel(lines, f"Figure 2, d = {d}", "rounds", "log10 of squared distance")


def log_distance(metrics: pd.DataFrame) -> pd.DataFrame:
    """log10 of the mean over clients of |x_i - theta_i|^2, by method, seed, round.

    Smaller distances than 1e-32, where float64 ends, count as 1e-32: some are zero.
    """
    keys = ["algorithm", "seed", "round"]
    distance = metrics.groupby(keys, sort=False)["distance"].mean()
    return np.log10(distance.clip(lower=1e-32)).rename("error").reset_index()


def _table_of_figure_2(d: int, errors: pd.DataFrame) -> list[Claim]:
    """Ours against the reference values, each the mean over three seeds."""
    expected = EXPECTED[f"fig2_d{d}"]
    claims = []
    for method, published in expected["error"].items():
        ours, agrees = [], True
        for t, value in zip(expected["rounds"], published, strict=True):
            at = errors[(errors["algorithm"] == method) & (errors["round"] == t)]
            mean, spread = at["error"].mean(), at["error"].std()
            # Their mean is over 3 seeds, ours over len(at); 0.05 is their rounding.
            error = spread * math.sqrt(1 / 3 + 1 / len(at))
            ours.append(f"{mean:.1f}±{error:.1f}")
            below_floor = value <= -29 and mean <= -28
            doubted = expected.get("doubted", {}).get(method, {}).get(str(t))
            if doubted is not None:
                value = doubted
            agrees &= below_floor or abs(mean - value) <= 3 * error + 0.05
        notes = expected.get("doubted", {}).get(method, {})
        claims.append(
            Claim(
                f"d={d}, {method}, t={expected['rounds']}",
                ", ".join(str(value) for value in published),
                ", ".join(ours),
                agrees,
                "; ".join(f"t={t} judged by {v}, see README" for t, v in notes.items()),
            )
        )
    return claims


def _claims_of_figure_2(d: int, errors: pd.DataFrame) -> list[Claim]:
    mean = errors.groupby(["algorithm", "round"])["error"].mean().unstack()
    first, last = (20, 50) if d == 2 else (100, 200)

    def slope(method: str) -> float:
        return (mean.loc[method, first] - mean.loc[method, last]) / (last - first)

    drift = mean.loc["FedAvg", last] - mean.loc["FedAvg", 10]
    gain = slope("binary") / slope("local")
    nearest = mean.loc["continuous, normalised, 8 batches", first]
    oracle, one = mean.loc["oracle", first], mean.loc["continuous", first]
    return [
        Claim(f"d={d}: FedAvg saturates", "flat", f"{drift:+.2f}", abs(drift) < 0.1),
        Claim(
            f"d={d}: slope of binary / local from t={first} to {last}",
            "at least 2",
            f"{gain:.1f}",
            bool(gain >= 2),
        ),
        Claim(
            f"d={d}: more estimation batches come nearer to the oracle, t={first}",
            "yes",
            f"1: {one:.1f}, 8: {nearest:.1f}, oracle {oracle:.1f}",
            bool(abs(nearest - oracle) < abs(one - oracle)),
        ),
    ]


def _table2(name: str, overrides: Sequence[str]) -> list[Claim]:
    records = run_with_progress(
        co.read_study(HERE / f"table2_{name}.toml", overrides)
    ).records
    draw_training(name, records.metrics, records.clients)
    claims = table2_claims(name, records.metrics, records.clients)
    return claims + table_s2_claims(name, records.metrics)


def table2_claims(
    name: str, metrics: pd.DataFrame, clients: pd.DataFrame
) -> list[Claim]:
    """Test accuracy in percent next to the published one, and the published order."""
    score = final_accuracy(metrics, clients)
    published = EXPECTED["table2"][name]
    claims = []
    for method in score.columns:
        values = score[method]
        value = published.get(method)
        claims.append(
            Claim(
                f"{name}: {method}",
                "-" if value is None else f"{value:.1f}",
                f"{values.mean():.1f}±{values.sem():.1f}",
                None,
                "" if value is None else f"{values.mean() - value:+.1f}",
            )
        )
    for better, worse in EXPECTED["order"][name]:
        theirs = published[better] - published[worse]
        gaps = score[better] - score[worse]  # paired by seed
        claims.append(lead(f"{name}: {better} above {worse}", theirs, gaps))
    return claims


def final_accuracy(metrics: pd.DataFrame, clients: pd.DataFrame) -> pd.DataFrame:
    """Test accuracy at the last round, seeds x methods, weighted by training sizes."""
    last = metrics[metrics["round"] == metrics["round"].max()]
    sizes = clients[["seed", "client", "train"]]
    last = last.merge(sizes, on=["seed", "client"])
    last["part"] = last["test_accuracy"] * last["train"]
    keys = ["seed", "algorithm"]
    total = last.groupby(keys, sort=False)[["part", "train"]].sum()
    return (100 * total["part"] / total["train"]).unstack(sort=False)


def draw_training(name: str, metrics: pd.DataFrame, clients: pd.DataFrame) -> None:
    """Figures 3 and S1: losses and accuracies against rounds, from the first one on.

    Means over clients, weighted by training sizes, and over seeds. Rows that should
    equal local training are dashed, and so are true clusters.
    """
    trained = metrics[metrics["round"] > 0]
    sized = trained.merge(clients[["seed", "client", "train"]], on=["seed", "client"])
    # Only some data sets have true clusters. They come last, so that all other methods
    # have the same colours on all data sets.
    order = sorted(sized["algorithm"].unique(), key=lambda name: "true" in name)
    panels = []
    for measure, title in (
        ("test_loss", "Figure 3: test loss"),
        ("test_accuracy", "Figure S1: test accuracy"),
    ):
        if measure not in sized:
            continue
        part = sized[measure] * sized["train"]
        keys = [sized["algorithm"], sized["round"]]
        mean = part.groupby(keys, sort=False).sum()
        mean /= sized["train"].groupby(keys, sort=False).sum()
        lines = []
        for label in sorted(mean.index.unique("algorithm"), key=order.index):
            curve = mean.loc[label]
            dashed = label.endswith(("no pull", "true clusters"))
            lines.append(Line(label, [*curve.index], curve.tolist(), dashed=dashed))
        log = measure == "test_loss"
        panels.append(Panel(lines, f"{title}, {name}", "rounds", "", log_y=log))
    draw_panels(page(name, "training"), panels)


def table_s2_claims(name: str, metrics: pd.DataFrame) -> list[Claim]:
    """Table S2: the deviation of accuracies over clients and seeds.

    The paper does not define it, but the numbers for heart disease do: they are
    deviations of a population of nine numbers, three hospitals times three seeds, and
    training accuracies are those of five samples of each. Other definitions cannot give
    these numbers (a test tries them). So the last client is left out here too, and
    training deviations are not judged. Those of test accuracies on heart disease may
    differ by 2.9 points: so much changes if one of the 16 test patients of the third
    hospital is classified otherwise.
    """
    last = metrics[metrics["round"] == metrics["round"].max()]
    kept = last[last["client"] < last["client"].max()]
    published = EXPECTED["table_s2"].get(name, {})
    samples = 5 if name == "heart" else 80  # five minibatches of 1 or 16
    claims = []
    for method, rows in kept.groupby("algorithm", sort=False):
        test, ours, note = 100 * rows["test_accuracy"].std(ddof=0), [], ""
        if "train_accuracy" in rows:
            train = rows["train_accuracy"].to_numpy().clip(0, 1)
            ours.append(f"{100 * train.std():.1f}")
            low, high = deviations_of_samples(train, samples)
            note = f"train, {samples} samples each: {low:.1f} to {high:.1f}"
        theirs = published.get(method)
        judged = name == "heart" and theirs is not None
        judged = judged and method not in EXPECTED["not_the_method"]["rows"]
        claims.append(
            Claim(
                f"{name}, Table S2, deviation of accuracy, train and test: {method}",
                "-" if theirs is None else ", ".join(f"{v:.1f}" for v in theirs),
                ", ".join([*ours, f"{test:.1f}"]),
                bool(abs(test - theirs[1]) <= 2.9) if judged else None,
                note,
            )
        )
    return claims


def deviations_of_samples(accuracies: np.ndarray, samples: int) -> tuple[float, float]:
    """The ends of 95 % of the deviations, in percent, with that number of samples."""
    rng = np.random.default_rng(0)
    shares = rng.binomial(samples, accuracies, (10_000, len(accuracies))) / samples
    low, high = np.quantile(100 * shares.std(axis=1), [0.025, 0.975])
    return float(low), float(high)


def table2_heart(overrides: Sequence[str]) -> list[Claim]:
    """Table 2, heart disease of four hospitals (minutes on two cores)."""
    records = run_with_progress(
        co.read_study(HERE / "table2_heart.toml", overrides)
    ).records
    draw_training("heart", records.metrics, records.clients)
    claims = table2_claims("heart", records.metrics, records.clients)
    claims += table_s2_claims("heart", records.metrics)
    return claims + _as_the_public_code_reports(records.metrics)


def _as_the_public_code_reports(metrics: pd.DataFrame) -> list[Claim]:
    """The unweighted mean of three hospitals: that code drops the last client, VA."""
    kept = metrics[(metrics["round"] == metrics["round"].max()) & (metrics.client < 3)]
    ours = 100 * kept.groupby("algorithm", sort=False)["test_accuracy"].mean()
    # The third hospital has 16 test patients: one of them is 2.1 points of the mean.
    return [
        Claim(
            f"heart, unweighted, without VA: {method}",
            f"{value:.1f}",
            f"{ours[method]:.1f}",
            None
            if method in EXPECTED["not_the_method"]["rows"]
            else bool(abs(ours[method] - value) <= 2.1),
            f"{ours[method] - value:+.1f}",
        )
        for method, value in EXPECTED["table2"]["heart"].items()
    ]


def table2_mnist(overrides: Sequence[str]) -> list[Claim]:
    """Table 2, MNIST at full size (a GPU; six minutes on one H200)."""
    return _table2("mnist", overrides)


def table2_cifar10(overrides: Sequence[str]) -> list[Claim]:
    """Table 2, CIFAR-10 at full size (a GPU; nine minutes on one H200)."""
    return _table2("cifar10", overrides)


SMALL = [
    "run.device=cpu",
    "run.rounds=10",
    "run.evaluate_every=1",
    "run.evaluate_train=false",
    "run.seeds=[127, 496]",
    "split.clients=8",
    "split.max_samples=400",
    "algorithm.steps=20",
    "algorithm.every=20",
    "algorithm.samples=128",
    "algorithm.schedule=constant",
]


def table2_mnist_small(overrides: Sequence[str]) -> list[Claim]:
    """Table 2, MNIST reduced to 8 clients and 200 steps (minutes on two cores)."""
    return _table2("mnist", [*SMALL, *overrides])


def table2_cifar10_small(overrides: Sequence[str]) -> list[Claim]:
    """Table 2, CIFAR-10 reduced to 8 clients and 200 steps (minutes on two cores)."""
    settings = [*SMALL, "split.max_samples=1000", "algorithm.lr=0.01"]
    return _table2("cifar10", [*settings, *overrides])


ITEMS = {
    "fig1": fig1,
    "fig2": fig2,
    "table2-heart": table2_heart,
    "table2-mnist": table2_mnist,
    "table2-cifar10": table2_cifar10,
    "table2-mnist-small": table2_mnist_small,
    "table2-cifar10-small": table2_cifar10_small,
}

LONG = frozenset({"table2-mnist", "table2-cifar10"})
"""Items that take more than five minutes of one core, or a GPU."""

REFERENCES = frozenset({"fig2"})
"""The figure has no numbers: those shown are of an independent script."""

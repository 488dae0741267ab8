"""Claims about the reproduction of chapter 6 of Even's thesis."""

from __future__ import annotations

from importlib import import_module

import networkx as nx
import pytest
import torch

from coterie.checks import InputError
from coterie.cli.reproductions import items_of
from coterie.graphs import edges_of
from coterie_theory.privacy import exact_losses, printed_losses
from support.thesis_claims import recorded

ITEMS = items_of("even2024")
losses, communities, dropouts, descent, pictures = (
    import_module(f"reproduce_even2024.{name}")
    for name in (
        *("gossip_losses", "communities", "dropouts"),
        *("private_descent", "chapter6"),
    )
)


def test_all_figures_and_tables_are_recorded():
    titles = [row["what"] for row in recorded("chapter6")]
    figures = {what.replace(":", ",").split(",")[0] for what in titles}
    wanted = {f"Figure 6.{k}" for k in ("1a", "1b", "1c", "3", "4", "5", "6")}
    assert wanted | {f"Table 6.{k}" for k in (1, 2, 3)} <= figures


def test_counter_examples_are_those_of_the_reference():
    claims = losses.counter_claims()
    assert len(claims) == 4 and all(claim.agrees for claim in claims)


def test_what_one_node_is_told_is_a_column_of_the_formula():
    found = losses.graph("line", edges_of("line", 9), 9)
    expected = printed_losses(losses.ledger(found)).share[:, 3]
    torch.testing.assert_close(losses.told_to(found, 3), expected)


def test_small_graphs_make_profiles_claims_and_pictures(tmp_path, monkeypatch):
    small = [
        losses.graph("hypercube", edges_of("hypercube", 32), 32),
        losses.graph("erdos_renyi", edges_of("line", 12), 12),
    ]
    monkeypatch.setattr(losses, "four_graphs", lambda full: small)
    found = losses.profiles(False)
    claims = losses.profile_claims(found)
    assert all(claim.agrees is not False for claim in claims[:-1])
    pictures.draw_profiles(tmp_path, found)
    pictures.draw_nodes(tmp_path, found, [])
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"figure61a.html", "nodes.html"}


def test_without_files_of_friends_six_groups_stand_for_them(tmp_path, monkeypatch):
    monkeypatch.setattr(
        communities, "substitute", lambda seed: nx.connected_caveman_graph(4, 6)
    )
    claims, found = communities.friends_claims(False, 0, str(tmp_path))
    assert len(claims) == 1 and "six groups" in claims[0].what
    (group,) = found
    assert communities.contrast(group.printed[0], group.nodes[0], group.community) > 1


def test_friends_are_the_largest_connected_part_of_a_file(tmp_path):
    (tmp_path / "facebook").mkdir()
    (tmp_path / "facebook" / "0.edges").write_text("5 7\n7 5\n7 9\n1 2\n")
    found = communities.read_friends(0, str(tmp_path))
    assert sorted(found.edges) == [(0, 1), (1, 2)]
    assert communities.read_friends(107, str(tmp_path)) is None


def test_a_run_with_dropouts_ends_and_counts_its_messages():
    run = dropouts.one_run(0.2, 0, nodes=60)
    assert run.errors[-1] < 1 <= run.errors[-2]
    book = dropouts.ledger_of(run, 60)
    messages = sum(len(event.links) for event in book.events[1:])
    assert run.losses[-1] == pytest.approx(messages / 60**2)
    assert float(exact_losses(book).share.sum()) <= messages + 1e-9


def test_gradients_are_those_of_the_logistic_loss_and_are_clipped():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, 2, generator=rng, dtype=torch.float64)
    y = torch.tensor([1.0, -1.0, 1.0, -1.0]).double().expand(3, 4)
    task = descent.Task(x, y, x[0], y[0])
    theta = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    margin = y * (x @ theta[:, :, None])[:, :, 0]
    loss = torch.log1p(torch.exp(-margin)).mean(1).sum()
    (expected,) = torch.autograd.grad(loss, theta)
    found = descent.gradients(task, theta.detach())
    torch.testing.assert_close(found, expected)
    long = descent.gradients(task._replace(x=100 * x), theta.detach())
    torch.testing.assert_close(long.norm(dim=1), torch.ones(3).double())


def test_muffliato_gd_without_noise_is_gradient_descent_with_a_server(monkeypatch):
    monkeypatch.setattr(descent, "NOISE", 0.0)
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(20, 4, 3, generator=rng, dtype=torch.float64)
    y = x[:, :, 0].sign()
    task = descent.Task(x, y, x.flatten(0, 1), y.flatten())
    steps = descent.steps_on(20, rng, links=3.0)
    steps = [step._replace(exchanges=60) for step in steps]
    ours, trusted = descent.descend(task, steps, rng)
    torch.testing.assert_close(ours, trusted, atol=1e-3, rtol=0)
    assert float(ours[-1]) > 0.8


def test_full_is_true_or_false():
    with pytest.raises(InputError, match="`full` must be true or false"):
        ITEMS["chapter6"](["full=3"])

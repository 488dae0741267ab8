"""Claims about links that slow others down: plans, files and the command."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from coterie.cli.commands import app
from coterie.graphs import delayed_gap, edges_of
from coterie.planning import MessageNetwork, network_of, plan_links
from support.called import called
from support.refusals import refusal, refuses

TOWNS = "v,w,delay\nBern,Chur,0.01\nChur,Thun,0.01\nThun,Visp,0.01\nVisp,Bern,5\n"


@pytest.fixture
def towns(tmp_path):
    path = tmp_path / "towns.csv"
    path.write_text(TOWNS)
    return path


def test_the_slow_link_of_a_ring_is_left_out(towns):
    found = plan_links(network_of(str(towns)))
    assert found.removed_links == [("Bern", "Visp", 5.0)]
    assert found.after.gap > found.before.gap
    # The bound's rate is limited by the slowest link that is in use.
    assert found.before.rate == pytest.approx(1 / 5)
    assert found.after.rate == pytest.approx(found.after.gap / 2)
    assert found.summary().startswith("Leave out 1 link of 4: ")


def test_where_all_links_are_alike_none_is_left_out():
    edges = edges_of("ring", 6)
    names = tuple("abcdef")
    delays = torch.ones(6, dtype=torch.float64)
    found = plan_links(MessageNetwork(edges, delays, names))
    assert found.removed_links == [] and found.before == found.after
    assert found.summary() == "Keep all 6 links: leaving some out gains nothing."


@pytest.mark.parametrize("slow", [0.05, 5.0])
def test_what_a_link_does_is_told_apart_from_what_ringing_does(slow):
    """In a ring of five, one link takes twice as long, and another one is slow."""
    edges = edges_of("ring", 5)  # 0-1, 0-4, 1-2, 2-3, 3-4
    delays = torch.tensor([0.01, slow, 0.02, 0.01, 0.01], dtype=torch.float64)
    found = plan_links(MessageNetwork(edges, delays, tuple("abcde")))
    line = torch.where(delays < slow, 1 / delays, 0.0)
    before, alone = (delayed_gap(edges, p, delays) for p in (1 / delays, line))
    if slow < 1:  # a link that does no harm is not credited for what tuning brings
        assert alone < before and found.removed_links == []
        return
    assert found.removed_links == [("a", "e", slow)]
    assert found.before.gap == pytest.approx(before)
    assert found.without.gap == pytest.approx(alone) and alone < 1.05 * before
    assert found.after.gap > 1.3 * before  # most of it by ringing
    ringing = found.after.gap / alone
    assert f"which sets the pace, by {alone / before:.4g}." in found.summary()
    assert f"multiplied by another {ringing:.4g}, " in found.summary()


def test_graphs_that_are_too_large_are_refused_before_they_are_made(tmp_path):
    """A complete graph of 100,000 nodes has five thousand million edges."""
    for nodes in (501, 100_000, 10**9):
        refuses(f"at most 500 nodes, got {nodes}", network_of, "complete", nodes)
    path = tmp_path / "long.csv"
    path.write_text("v,w\n" + "".join(f"{i},{i + 1}\n" for i in range(501)))
    refuses("at most 500 nodes, got 502", network_of, str(path))


def test_delays_come_from_a_file_of_their_own(tmp_path, towns):
    delays = tmp_path / "delays.csv"
    delays.write_text("v,w,delay\n0,1,2\n2,1,3\n")
    network = network_of("line", 3, delays)
    assert network.delays.tolist() == [2.0, 3.0]
    assert network.names == ("0", "1", "2")
    delays.write_text(TOWNS.replace("5", "7"))
    assert network_of(str(towns), None, delays).delays.max() == 7
    assert network_of("line", 3).delays.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("v,w,delay\n0,1,2\n", "has no delay between 1 and 2"),
        ("v,w,delay\n0,1,2\n1,0,3\n1,2,1\n", "two delays between 1 and 0, 2 and 3"),
        (
            "v,w,delay\n0,1,-2\n1,2,1\n",
            "row 2 .* must have a positive number, got '-2'",
        ),
        ("v,w,delay\n0,1,\n1,2,1\n", "row 2 .* must have a positive number"),
        ("v,w\n0,1\n1,2\n", "has no column 'delay'"),
    ],
)
def test_bad_delays_are_refused_in_one_sentence(tmp_path, rows, words):
    path = tmp_path / "delays.csv"
    path.write_text(rows)
    refuses(words, network_of, "line", 3, path)


def test_other_mistakes_are_refused_too(towns):
    refuses("needs `--nodes`", network_of, "ring")
    refuses("`--nodes` is for named graphs only", network_of, str(towns), 4)
    refuses("cannot read the graph", network_of, "nowhere.csv")


def test_the_command_prints_a_table_or_one_object(towns):
    shown = CliRunner().invoke(app, ["plan", "--graph", str(towns)])
    assert shown.exit_code == 0
    assert "Leave out 1 link of 4" in shown.output and "Visp" in shown.output
    answer = CliRunner().invoke(app, ["plan", "--graph", str(towns), "--json"])
    found = json.loads(answer.output)
    assert found["removed"] == [{"v": "Bern", "w": "Visp", "delay": 5.0}]
    assert found["after"]["gap"] > found["before"]["gap"]
    assert [link["rate"] > 0 for link in found["links"]].count(False) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan"], "needs either a study or --graph"),
        (["plan", "s.toml", "--graph", "ring"], "needs either a study or --graph"),
        (["plan", "s.toml", "--nodes", "3"], "need --graph"),
    ],
)
def test_the_command_wants_a_study_or_a_graph(words, said):
    assert said in refusal(called, *words)

"""Claims about the verbs between clients: what comes back, and what is sent to whom."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.testing import assert_close

from coterie.checks import InputError
from coterie.collaboration.rows import compute_once
from coterie.conformance.divided import run_divided
from coterie.types import SERVER, Numbers, traffic_of
from support.oracles import over_links
from support.plain_clients import EXACT
from support.refusals import refuses
from support.simulated import REAL, in_round, rows, share_of, simulate, simulated
from support.six_clients import SHARES, SOME, D, N, everybody_or_some, who

# Clusters of clients; only 1 and 4 have a share of the last, who are not in SOME.
CLUSTERS = torch.tensor(
    [[1, 0, 2, 0, 0, 3], [0, 1, 0, 4, 0, 0], [0, 2, 0, 0, 1, 0]], dtype=REAL
)
GROUPS = torch.tensor([0, 0, 1, 0, 4, 4])
LINKS = [(0, 0), (0, 1), (0, 4), (1, 2), (2, 2), (2, 3), (3, 0), (4, 4), (5, 3)]


def weights() -> torch.Tensor:
    """Weights of a few pairs; some diagonal entries are among them."""
    dense = torch.zeros(N, N, dtype=REAL)
    for number, (i, k) in enumerate(LINKS, start=1):
        dense[i, k] = number / 7
    return dense


@everybody_or_some
def test_an_average_is_the_weighted_mean_of_those_who_take_part(classification, active):
    oracle, x = in_round(classification, 1, active)
    found = oracle.average(SHARES, x)
    total = sum(float(SHARES[i]) for i in who(active))
    expected = sum(float(SHARES[i]) / total * x[i] for i in who(active))
    assert_close(found, expected.repeat(N, 1), **EXACT)
    assert found.stride(0) == 0  # one row in memory, however many clients there are
    up = {("average", i, SERVER): D for i in who(active)}
    down = {("average", SERVER, i): D for i in who(active)}
    assert over_links(oracle.sent) == {**up, **down}
    assert traffic_of(oracle.sent) == (2 * D * len(who(active)), 0)


@everybody_or_some
def test_clusters_have_an_average_each_and_one_without_shares_is_zero(
    classification, active
):
    oracle, x = in_round(classification, 1, active)
    found = oracle.average(CLUSTERS, x)
    assert found.shape == (N, 3, D)
    for c, shares in enumerate(CLUSTERS.tolist()):
        here = [i for i in who(active) if shares[i]]
        total = sum(shares[i] for i in here)
        expected = sum((shares[i] / total * x[i] for i in here), torch.zeros(D))
        assert_close(found[:, c], expected.to(REAL).repeat(N, 1), **EXACT)
    assert bool((found[:, 2] == 0).all()) == (active is not None)
    up = {("average", i, SERVER): D for i in who(active)}
    down = {("average", SERVER, i): 3 * D for i in who(active)}
    assert over_links(oracle.sent) == {**up, **down}


def test_an_average_of_nobody_is_refused(classification):
    oracle, x = in_round(classification, 1, SOME)
    shares = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0, 1.0])  # of those who are not there
    refuses("shares of active clients must add up to", oracle.average, shares, x)


def layouts() -> dict[str, torch.Tensor]:
    """The same weights, dense and sparse, the sparse ones with a zero among them."""
    places = torch.tensor([*LINKS, (5, 0)]).T
    dense = weights()
    values = dense[places[0], places[1]]
    coo = torch.sparse_coo_tensor(places, values, (N, N), check_invariants=True)
    return {"dense": dense, "coo": coo, "csr": coo.to_sparse_csr()}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("layout", ["dense", "coo", "csr"])
@everybody_or_some
def test_a_mixture_is_a_sum_over_contributors(classification, active, layout):
    oracle, x = in_round(classification, 1, active)
    found = oracle.mix(layouts()[layout], x)
    for i in range(N):
        expected = torch.zeros(D, dtype=REAL)
        for k in range(N):
            if k == i or k in who(active):
                expected += weights()[i, k] * x[k]
        assert_close(found[i], expected, **EXACT)
    # Nobody sends to oneself, nor over a link of weight zero, nor without taking part.
    used = [(k, i) for i, k in LINKS if i != k and k in who(active)]
    assert len(used) == (6 if active is None else 4)
    assert over_links(oracle.sent) == {("mix", k, i): D for k, i in used}
    assert traffic_of(oracle.sent) == (0, D * len(used))


def test_weights_of_another_dtype_are_those_of_the_rows(classification):
    simulation, x = simulated(classification)
    halves = torch.full((N, N), 0.5)  # exact in single precision
    found = simulation.at(1).mix(halves, x)
    assert_close(found, (x.sum(0) / 2).repeat(N, 1), **EXACT)


def test_every_mixture_of_a_round_is_counted_with_its_own_weights(classification):
    oracle, x = in_round(classification, 1)
    pair = torch.zeros(N, N, dtype=REAL)
    pair[0, 1] = 1
    for now in (pair, pair, pair.T.clone(), torch.ones(N, N, dtype=REAL)):
        oracle.mix(now, x)
    assert [one.total for one in oracle.sent] == [D, D, D, N * (N - 1) * D]
    assert [one.links.tolist() for one in oracle.sent[:3]] == [[[1, 0]]] * 2 + [
        [[0, 1]]
    ]


def mutual() -> torch.Tensor:
    """The same and a few more: who has a weight for another is weighed by it."""
    return weights() + 0.5 * weights().T


def ordered(server, here, x, numbers, *, power):
    """A coordinator's program: rows in turn, three numbers each, and who was there."""
    turned = x.new_zeros(N, x.shape[1]).index_copy(0, here, x.roll(1, 0))
    sums = numbers.sum(1, keepdim=True) ** power
    powers = numbers.new_zeros(N, 3).index_copy(0, here, sums.repeat(1, 3))
    return (server or []) + here.tolist(), turned, powers


@everybody_or_some
def test_a_coordinator_sees_rows_of_those_who_are_there_and_remembers(
    classification, active
):
    oracle, x = in_round(classification, 1, active)
    numbers = torch.arange(2.0 * N, dtype=REAL).reshape(N, 2)
    here = list(who(active))
    hidden = x.clone()  # nobody reads a row of the absent
    hidden[[i for i in range(N) if i not in here]] = torch.nan
    given = hidden, Numbers(numbers)
    server, turned, powers = oracle.central(ordered, [7], *given, power=2)
    assert server == [7, *here]
    for place, i in enumerate(here):
        assert torch.equal(turned[i], x[here[place - 1]])
        assert powers[i].tolist() == [(4 * i + 1) ** 2] * 3
    up = {("central", i, SERVER): D + 2 for i in who(active)}
    down = {("central", SERVER, i): D + 3 for i in who(active)}
    assert over_links(oracle.sent) == {**up, **down}
    assert traffic_of(oracle.sent) == ((2 * D + 5) * len(who(active)), 0)


def test_a_coordinator_may_give_one_thing_back_and_take_single_numbers(classification):
    oracle = simulate(classification).at(1)
    given = Numbers(torch.arange(N))
    _, doubled = oracle.central(lambda server, who, sizes: (None, 2 * sizes), 0, given)
    assert doubled.tolist() == [0, 2, 4, 6, 8, 10]
    assert traffic_of(oracle.sent).server == 2 * N


def test_a_coordinator_must_answer_every_client(classification):
    def median(server, who, x):
        return server, x.median(0).values.repeat(len(who), 1)

    oracle, x = in_round(classification, 1, SOME)
    refuses(
        f"answer 1 of `median` must have a row for each of {N} clients, got "
        f"{int(SOME.sum())}.",
        *(oracle.central, median, None, x),
    )


@everybody_or_some
def test_a_blend_sends_models_out_and_gradients_back_between_those_who_take_part(
    classification, active
):
    oracle, x = in_round(classification, 1, active)
    oracle.blended(x, weights())
    here = who(active)
    used = [(i, k) for i, k in LINKS if i != k and i in here and k in here]
    assert len(used) == (6 if active is None else 2)
    expected: Counter = Counter()
    for i, k in used:
        expected["blended", i, k] += D  # the reader's model
        expected["blended", k, i] += D  # the contributor's gradient
    assert over_links(oracle.sent) == expected
    assert traffic_of(oracle.sent) == (0, 2 * D * len(used))


@everybody_or_some
def test_a_comparison_sends_a_model_and_two_gradients_between_all_pairs(
    classification, active
):
    oracle, x = in_round(classification, 1, active)
    oracle.compare(x)
    here = who(active)
    pairs = {("compare", i, k): 3 * D for i in here for k in here if i != k}
    assert over_links(oracle.sent) == pairs
    assert traffic_of(oracle.sent) == (0, 3 * D * len(pairs))


def descended(clients, x, *, lr):
    """A client program: one step."""
    return x - lr * clients.grad(x)


def test_what_clients_do_alone_sends_nothing_and_each_round_counts_anew(classification):
    simulation, x = simulated(classification)
    oracle = simulation.at(1)
    oracle.grads(x)
    oracle.each(descended, x, lr=0.1)
    assert traffic_of(oracle.sent) == (0, 0)
    oracle.average(SHARES, x)
    oracle.mix(torch.ones(N, N), x)
    assert traffic_of(oracle.sent) == (2 * N * D, N * (N - 1) * D)
    assert simulation.at(2).sent == []


def test_what_is_made_of_one_row_is_computed_once_and_else_row_by_row():
    asked = []

    def product(a, b):
        asked.append(len(a))
        return a * b

    mean, other = torch.arange(3.0).expand(5, 3), torch.arange(15.0).reshape(5, 3)
    once = compute_once(product, mean, torch.full((1, 3), 2.0).expand(5, 3))
    assert once.stride() == (0, 1)
    assert_close(once, 2 * torch.arange(3.0).repeat(5, 1))
    assert_close(compute_once(product, mean, other), mean * other)
    assert asked == [1, 5]


def answers(oracle, x) -> dict[str, torch.Tensor]:
    """What every verb says to the rows at hand."""
    mine = oracle.mine
    numbers = torch.arange(2.0 * N, dtype=REAL).reshape(N, 2)[mine]
    given = x, Numbers(numbers)
    server, turned, powers = oracle.central(ordered, None, *given, power=2)
    assert (server is None) == (mine.start > 0)  # the coordinator alone remembers
    return {
        "average": oracle.average(SHARES[mine], x),
        "clusters": oracle.average(CLUSTERS[:, mine], x),
        "mix": oracle.mix(weights(), x),
        "sparse": oracle.mix(layouts()["coo"], x),
        "sparse rows": oracle.mix(layouts()["csr"], x),
        "own weights": oracle.mix(mutual()[mine], x),
        "own sparse": oracle.mix(mutual()[mine].to_sparse_coo(), x),
        "groups": oracle.average(SHARES[mine], x, GROUPS[mine], count=5),
        "any groups": oracle.average(SHARES[mine], x, GROUPS[mine]),
        "turned": turned,
        "powers": powers,
        "blended": oracle.blended(x, weights()),
        "one reader": oracle.blended(x, torch.eye(N, dtype=REAL).roll(1, 0)),
        "grads": oracle.grads(x),
        "each": oracle.each(descended, x, lr=0.1)[0],
        "gradients": oracle.gradients,
    }


def in_parts(federation, size: int, active, **settings):
    """Answers and comparison in each thread, and what was sent."""
    x = rows(simulate(federation))

    def run(group):
        own, mine = share_of(federation, group)
        oracle = simulate(own, group=group, **settings).at(3, active)
        found = answers(oracle, x[mine])
        seen = *oracle.compare(x[mine]), *oracle.compare(x[mine], pairs=weights() != 0)
        return found, seen, own_links(oracle), oracle.gradients

    return run_divided(run, size)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("size", [2, 3, N])
@everybody_or_some
@pytest.mark.parametrize("home", [False, True], ids=["shared", "personal"])
def test_a_divided_federation_answers_as_the_whole(classification, size, active, home):
    settings = {"home": torch.arange(D) % 3 == 0} if home else {}
    ((whole, seen, sent, gradients),) = in_parts(classification, 1, active, **settings)
    parts = in_parts(classification, size, active, **settings)
    for name, expected in whole.items():
        found = torch.cat([part[0][name] for part in parts])
        assert_close(found, expected, **EXACT, msg=lambda text, n=name: f"{n}: {text}")
    assert_close(torch.cat([part[3] for part in parts]), gradients)
    for _, told, _, _ in parts:
        for one, other in zip(told, seen, strict=True):
            assert_close(one, other, **EXACT)
    # Each counts what its own clients send, or get from a server.
    assert sum((part[2] for part in parts), Counter()) == sent


def own_links(oracle) -> Counter:
    """What clients at hand send or get from a server; raises unless it adds up."""
    mine, found = oracle.mine, Counter()
    for (verb, source, target), values in over_links(oracle.sent).items():
        client = target if source == SERVER else source
        if mine.start <= client < mine.stop:
            found[verb, source, target] += values
    assert sum(found.values()) == traffic_of(oracle.sent, mine).total
    return found


def lopsided(oracle, x):
    """A mixture in which 0 has a weight for the last, and is not weighed by it."""
    one_way = torch.eye(N, dtype=REAL)
    one_way[0, N - 1] = 1
    return oracle.mix(one_way[oracle.mine], x)


def exchanged(oracle, x):
    """The same, where 1 is weighed by the last: as many rows, but of others."""
    crossed = torch.eye(N, dtype=REAL)
    crossed[0, N - 1] = crossed[N - 1, 1] = 1
    return oracle.mix(crossed[oracle.mine], x)


@pytest.mark.parametrize("verb", [lopsided, exchanged])
def test_weights_of_clients_at_hand_must_be_mutual(classification, verb):
    """Or nobody knows to whom to send: never a wrong row in silence."""
    x = rows(simulate(classification))

    def run(group):
        own, mine = share_of(classification, group)
        return verb(simulate(own, group=group).at(1), x[mine])

    refuses("must be mutual", run_divided, run, 2)


@pytest.mark.parametrize("count", [None, 4])
def test_groups_are_numbered_below_their_count(classification, count):
    oracle, x = in_round(classification, 1)
    groups = torch.tensor([0, 1, 2, 3, 0, 6 if count is None else 4])
    with pytest.raises(InputError, match=rf"from 0 to {(count or N) - 1}, got 0 to"):
        oracle.average(SHARES, x, groups, count=count)
    with pytest.raises(InputError, match="got -1 to 5"):
        oracle.average(SHARES, x, torch.arange(N) - 1 + (torch.arange(N) == 5))


def test_several_exchanges_are_as_many_mixtures_by_the_recursion(classification):
    simulation = simulate(classification)
    x, w, gamma = rows(simulation), weights(), 1.3
    oracle = simulation.at(1)
    found = oracle.mix(w, x, exchanges=3, gamma=gamma)
    first = w @ x
    second = gamma * w @ first + (1 - gamma) * x
    assert_close(found, gamma * w @ second + (1 - gamma) * first, **EXACT)
    once = simulation.at(1)
    once.mix(w, x)
    assert over_links(oracle.sent) == Counter(
        {link: 3 * values for link, values in over_links(once.sent).items()}
    )


def test_a_round_without_some_is_that_of_the_others_and_counted_with_it(classification):
    simulation, x = simulated(classification)
    oracle, expected = simulation.at(1), simulation.at(1, SOME)
    less = oracle.without_clients(~SOME)
    assert_close(less.grads(x), expected.grads(x), rtol=0, atol=0)
    assert_close(less.mix(weights(), x), expected.mix(weights(), x), rtol=0, atol=0)
    assert over_links(oracle.sent) == over_links(expected.sent)
    assert_close(oracle.gradients, expected.gradients, rtol=0, atol=0)


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_a_weight_of_zero_means_that_a_row_is_not_used(classification, bad):
    """One row that is not finite spoils the sums that use it, and no others."""
    oracle, x = in_round(classification, 1)
    spoilt, others = x.clone(), [i for i in range(N) if i != 2]
    spoilt[2, 1] = bad
    without = torch.tensor([1.0, 1, 0, 1, 1, 1], dtype=REAL)
    apart = weights()
    apart[:, 2] = 0
    for ask in (
        lambda rows: oracle.average(SHARES, rows, GROUPS)[others],
        lambda rows: oracle.average(without, rows),
        lambda rows: oracle.average(torch.stack([without, SHARES]), rows)[:, 0],
        lambda rows: oracle.mix(apart, rows),
        lambda rows: oracle.mix(apart.to_sparse_coo(), rows),
    ):
        assert_close(ask(spoilt), ask(x), rtol=0, atol=0)
    assert oracle.average(SHARES, spoilt, GROUPS)[2].isnan().all()
    assert oracle.average(SHARES, spoilt).isnan().all()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_a_row_of_an_absent_client_is_not_read(classification):
    """It may hold anything: what others get is the same, and it keeps its own."""
    simulation, x = simulated(classification)
    hidden = torch.where(SOME[:, None], x, torch.nan)
    for ask in (
        lambda oracle, rows: oracle.average(SHARES, rows),
        lambda oracle, rows: oracle.average(SHARES, rows, torch.arange(N) % 2),
        lambda oracle, rows: oracle.mix(weights(), rows)[SOME],
        lambda oracle, rows: oracle.mix(weights().to_sparse_csr(), rows)[SOME],
        lambda oracle, rows: oracle.blended(rows, weights())[SOME],
    ):
        found, expected = (ask(simulation.at(1, SOME), rows) for rows in (hidden, x))
        assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("size", [2, 3, N])
@everybody_or_some
def test_a_verb_is_one_message(classification, size, active):
    """An average and a mixture are one; whoever is asked is asked, and answers."""
    x = rows(simulate(classification))
    verbs = {
        "average": lambda oracle, x: oracle.average(SHARES[oracle.mine], x),
        "clusters": lambda oracle, x: oracle.average(CLUSTERS[:, oracle.mine], x),
        "mix": lambda oracle, x: oracle.mix(weights(), x),
        "central": lambda oracle, x: oracle.central(
            ordered, None, x, Numbers(x[:, :2]), power=2
        ),
        "groups": lambda oracle, x: oracle.average(
            SHARES[oracle.mine], x, GROUPS[oracle.mine], count=5
        ),
        "own": lambda oracle, x: oracle.mix(mutual()[oracle.mine], x),
        "twice": lambda oracle, x: oracle.mix(weights(), x, exchanges=2),
        "blended": lambda oracle, x: oracle.blended(x, weights()),
        "compare": lambda oracle, x: oracle.compare(x),
    }
    expected = dict.fromkeys(["average", "clusters", "groups", "mix", "own"], 1)
    expected |= dict.fromkeys(["central", "twice", "blended", "compare"], 2)

    def run(group):
        own, mine = share_of(classification, group)
        oracle, counts = simulate(own, group=group).at(1, active), {}
        for name, verb in verbs.items():
            before = group.messages
            verb(oracle, x[mine])
            counts[name] = group.messages - before
        return counts

    assert run_divided(run, size) == [expected] * size


@pytest.mark.parametrize("size", [2, 3, N])
@everybody_or_some
def test_processes_send_each_other_the_rows_that_are_used(classification, size, active):
    """Counted against a loop over pairs: no others, no weights, and each only once."""
    x, here = rows(simulate(classification)), who(active)
    sizes = [N // size] * size
    home = [process for process, n in enumerate(sizes) for _ in range(n)]

    def sends(pairs, process) -> int:
        """Rows that clients of a process send to other processes."""
        sent = {(source, home[to]) for source, to in pairs if source != to}
        return sum(home[s] == process != other for s, other in sent)

    def run(group):
        own, mine = share_of(classification, group)
        oracle, counts = simulate(own, group=group).at(1, active), []
        for verb in (
            lambda: oracle.mix(weights(), x[mine]),
            lambda: oracle.mix(layouts()["coo"], x[mine]),
            lambda: oracle.mix(mutual()[mine], x[mine]),
            lambda: oracle.blended(x[mine], weights()),
            lambda: oracle.average(SHARES[mine], x[mine], GROUPS[mine], count=5),
        ):
            before = group.values
            verb()
            counts.append(group.values - before)
        return counts

    of = weights().nonzero().tolist()
    mixes = [(k, i) for i, k in of if k in here]
    both = [(k, i) for i, k in mutual().nonzero().tolist() if k in here]
    blends = [(k, i) for k, i in mixes if i in here]
    for process, counts in enumerate(run_divided(run, size)):
        models = sends([(i, k) for k, i in blends], process)
        # A process answers with one sum of gradients to each who asks it.
        asked = {(home[k], i) for k, i in blends if home[k] != home[i]}
        answers = sum(source == process for source, _ in asked)
        assert counts == [
            sends(mixes, process) * D,
            sends(mixes, process) * D,
            sends(both, process) * (D + 1),  # and its position
            (models + answers) * D,
            2 * 5 * (D + 1),  # sums and shares of all groups, there and back
        ]


def refusing(server, here, x):
    raise InputError("not today.")


def test_what_a_coordinator_refuses_is_refused_everywhere(classification):
    x = rows(simulate(classification))

    def run(group):
        own, mine = share_of(classification, group)
        with pytest.raises(InputError, match="not today"):
            simulate(own, group=group).at(1).central(refusing, None, x[mine])
        return True

    assert run_divided(run, 3) == [True] * 3

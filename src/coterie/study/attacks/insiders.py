"""Canaries whose rows or gradients an auditor chooses, in the mechanism of a study."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from ...privacy.accounting.accounts import by_pairs, epsilons
from ...privacy.attacks import (
    Decisions,
    View,
    heard_events,
    pair_canaries,
    row_canaries,
    view_of,
)
from ...privacy.mechanisms import Mechanism
from ...records import SNAPSHOT_CLIENTS
from ..config import Entry
from ..private import guard_of
from ..setup import Setup
from .canaries import Canaries
from .proofs import Account, Proof
from .samples import sample_canaries

TESTS = 2
"""The number of tests of each algorithm: one for an observer of all releases, and one
for a single receiver. """

_MORE = 1e-6
"""The relative error that rounding may cause in what a receiver learns."""


def insider_proofs(
    setup: Setup,
    entry: Entry,
    account: Account,
    canaries: Canaries,
    confidence: float,
) -> list[Proof]:
    """What chosen canaries prove, each with this confidence."""
    guard = guard_of(setup, entry)
    mechanism = guard.mechanism
    if not mechanism.noise:
        return []
    if guard.clients is not None:
        found = sample_canaries(setup, canaries, mechanism.clip, mechanism.noise)
        return [_proof(entry, "chosen gradients", found, account, confidence)]
    unit = (mechanism.sensitivity / mechanism.noise) ** 2
    releases = max(1, round(account.square / unit))
    found = row_canaries(mechanism, releases, setup.x.shape[1])
    proofs = [_proof(entry, "chosen rows", found, account, confidence)]
    if len(setup.federation) <= SNAPSHOT_CLIENTS:  # with more, no pairs are printed
        proofs.extend(_of_pair(setup, entry, account, mechanism, confidence))
    return proofs


def _proof(
    entry: Entry, attack: str, made: Decisions, account: Account, confidence: float
) -> Proof:
    bounds = account.proved_epsilons(made, confidence)
    counts = made.right, made.guesses
    return Proof(entry.label, attack, *counts, *bounds, account.epsilon())


def _of_pair(
    setup: Setup,
    entry: Entry,
    account: Account,
    mechanism: Mechanism,
    confidence: float,
) -> list[Proof]:
    """What one receiver proves about one sender, next to the epsilon of this pair."""
    n, federation = len(setup.federation), setup.federation
    events = heard_events(account.events, n)
    said = by_pairs(events, n)[:, :n]
    if not bool((said > 0).any()):
        return []  # clients receive nothing from each other
    less = (said > 0) & (said < said.amax(1, keepdim=True) * (1 - _MORE))
    hears = (said > 0).any(0)
    # The receiver that is most often said to learn less than others.
    receiver = int((less.sum(0) + hears.double() / 2).argmax())
    view = view_of(events, n, receiver, mechanism)
    unit = mechanism.sensitivity / mechanism.noise
    sender = _most_revealing_sender(view, said[:, receiver], less[:, receiver], unit)
    if sender is None:
        return []
    made = pair_canaries(mechanism, view, sender)
    squares = [made.at_least(confidence) ** 2, made.could(confidence) ** 2]
    squares.append(float(said[sender, receiver]))
    bounds = epsilons(torch.tensor(squares), account.delta).tolist()
    pair = f"{federation.name_of(sender)} to {federation.name_of(receiver)}"
    attack = f"chosen rows, {pair}"
    return [Proof(entry.label, attack, made.right, made.guesses, *bounds)]


def _most_revealing_sender(
    view: View, said: Float64[Tensor, " n"], less: Bool[Tensor, " n"], unit: float
) -> int | None:
    """The sender about which a receiver learns most; None if it learns nothing.

    Senders about which it learns more than `said` come first. Then come senders that,
    by the account, reveal less to this receiver than to somebody else.

    Args:
        view: what the receiver sees.
        said: mu^2 of each client towards the receiver, 0 for itself.
        less: which clients reveal more to somebody else, by the account.
        unit: mu of a row.
    """
    own = torch.tensor([view.mu(k, unit) ** 2 for k in range(len(said))])
    own = torch.where(said > 0, own, 0.0)
    if not bool((own > 0).any()):
        return None
    beyond = own > said * (1 + _MORE) + _MORE
    first = own + (less.double() + 2 * beyond.double()) * own.max() * (own > _MORE)
    return int(first.argmax())

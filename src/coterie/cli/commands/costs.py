"""The command `plan` with --epsilon or [privacy]: the noise, and what it costs."""

from __future__ import annotations

import math

from rich.table import Table

from ...privacy.mechanisms.noise import simulated_text
from ...study import Study
from ..progress import plain_progress
from ..tables import print_epsilons, print_json
from ..terminal import err, out

_COSTS = {
    "client": "noise: standard deviation of each coordinate that is sent; releases: by "
    "the client that makes the most.",
    "sample": "noise: as in [privacy], in units of the clip of a sample's gradient; "
    "releases: minibatches of the client that is asked most.",
}
_DOUBT = " A trial measures its score on the data without noise: use pilot data."


def show_costs(
    study: Study,
    epsilon: float | None,
    delta: float | None,
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Prints the noise that an epsilon needs, and the score that it costs."""
    import pandas as pd

    from ...planning.private import plan_privacy

    with plain_progress(err, f"{study.name}, trials", quiet=quiet) as show:
        found = plan_privacy(study, epsilon=epsilon, delta=delta, progress=show)
    source = "seed" if study.privacy is None else study.privacy.noise_source
    words = simulated_text(source)
    if as_json:
        return print_json(
            {"costs": [cost._asdict() for cost in found], "noise": words or "secret"}
        )
    unit = "client" if study.privacy is None else study.privacy.unit
    table = Table(caption=_COSTS[unit] + _DOUBT)
    for column in ("algorithm", "epsilon", "noise", "releases", "validation score"):
        table.add_column(column, justify="left" if column == "algorithm" else "right")
    for cost in found:
        free = cost.epsilon == math.inf
        cells = ["none" if free else f"{cost.epsilon:g}", f"{cost.noise:.3g}"]
        cells += [f"{cost.releases:g}", f"{cost.score:.4g}"]
        table.add_row(cost.label, *(["–"] * 4 if cost.reason else cells))
    out.print(table)
    summed = [cost for cost in found if cost.roles]
    if summed:
        roles = pd.DataFrame([dict(cost.roles) for cost in summed])
        roles.index = [f"{cost.label}, epsilon {cost.epsilon:g}" for cost in summed]
        print_epsilons(roles)
    if words:
        out.print(words)
    for cost in found:
        if cost.reason:
            out.print(cost.reason)

"""The model card: what a model is, how good it is, and how to use it.

The card is a page in Markdown for people who get only the folder of an exported model.
Its words are in `templates`. Names come from other people's files. So Markdown in names
is escaped, and control characters are shown as escapes.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..checks import several
from ..data.federation import full_name
from ..data.looking.dates import ORIGIN
from ..models import OBJECTIVES
from ..privacy.mechanisms.noise import simulated_text
from ..records import Records
from ..records.cells import CONSTANT
from ..scores.baselines import gain_over_baseline
from ..scores.caching import with_cache
from ..scores.finals import Score, local_label, planned_algorithms, score_of
from ..scores.gains import client_scores, gain_of, newcomer_score
from ..scores.intervals import Estimate
from ..scores.roles import promised_to
from ..scores.summaries import costs_of
from ..scores.words import as_many, in_bytes, large, seconds_of
from .predictions import ABOUT
from .programs import ONNX, PROGRAM, WEIGHTS
from .runs import TrainedModel

_PARTNERS = 20
"""The most clients that are listed by name, those with the largest weights."""

_CONTENTS = {
    WEIGHTS: "the weights",
    PROGRAM: "the model as a program, torch.export",
    ONNX: "the model as a program, ONNX",
}


def escape_markdown(text: object) -> str:
    r"""The text in a form that Markdown shows unchanged.

    >>> escape_markdown("a|b <i>")
    'a\\|b \\<i\\>'
    """
    plain = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))
    return re.sub(r"([\\`*_{}\[\]<>#|!~&$])", r"\\\1", plain)


@cache
def _environment() -> Environment:
    """Templates in Markdown that escape every value except those marked `plain`."""
    environment = Environment(
        loader=PackageLoader("coterie.export"),
        autoescape=False,
        finalize=lambda v: v if isinstance(v, Markup) else escape_markdown(v),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["plain"] = Markup
    return environment


def _render(template: str, **data: object) -> Markup:
    return Markup(_environment().get_template(template).render(data))


def card(records: Records, trained: TrainedModel, about: dict[str, Any]) -> str:
    """The page of one model; `about` is the content of its model.json."""
    records = with_cache(records)  # caches results while the page is made
    module, own, _ = about["model"]["name"].partition(":")
    then, now = about["versions"]["trained"], about["versions"]["exported"]
    page = _render(
        "card.md",
        about=about,
        trained=trained,
        size=trained.size(),
        client=full_name(records.names, trained.client),
        privacy=privacy_text(records, trained),
        partners=partner_text(records, trained),
        score=score_of(records),
        shape=", ".join(str(size) for size in about["input"]["shape"]),
        module=module if own else "",
        flag=module if own and re.fullmatch(r"[\w.]+", module) else "",
        files={"about": ABOUT, "program": PROGRAM, "weights": WEIGHTS},
        contents=_CONTENTS,
        versions=[
            (key, then.get(key, ""), now.get(key, ""))
            for key in dict.fromkeys([*then, *now])
        ],
        origin=ORIGIN,
        labelled=OBJECTIVES[records.task].labelled,
        private=isinstance(records.study.get("privacy"), dict),
        oracles=records.oracles,
        **_scores(records, trained),
        **_costs(records, trained.label),
    )
    return f"{page.strip()}\n"


def privacy_text(records: Records, trained: TrainedModel) -> Markup:
    """What training released about the client's data; empty without [privacy]."""
    settings, table = records.study.get("privacy"), records.metrics
    if not isinstance(settings, dict) or "epsilon" not in table:
        return Markup()
    own = table[
        (table["algorithm"] == trained.label)
        & (table["seed"] == trained.seed)
        & (table["client"] == trained.client)
    ]
    if own.empty:
        return Markup()
    return _render(
        "privacy.md",
        spent=float(own["epsilon"].iloc[-1]),
        settings={"delta": 1e-5, "unit": "client", **settings},
        to=promised_to(settings),
        simulated=simulated_text(settings.get("noise_source", "seed")),
    ).strip()


class ScoreText(NamedTuple):
    """A score and its interval, as text."""

    score: str
    interval: str


def _score_text(score: Score, found: Estimate) -> ScoreText:
    low, high = float(found.low), float(found.high)
    known = np.isfinite(high - low)
    interval = f"{score.show(low)} to {score.show(high)}" if known else "unknown"
    return ScoreText(score.show(float(found.mean)), interval)


def _scores(records: Records, trained: TrainedModel) -> dict[str, Any]:
    """The scores of this model, and of training alone, on the client's test data.

    A client that joined after training has the scores `newcomer` and, if it trained
    alone, `alone`. For others, `gain` is over all seeds.
    """
    score, client, seed = score_of(records), trained.client, trained.seed
    labels, local = [trained.label], local_label(records)
    if local is not None and local != trained.label:
        labels.append(local)
    late = records.newcomers
    if not late.empty:
        late = late[(late["client"] == client) & (late["seed"] == seed)]
    if len(late):
        known = {*late["algorithm"], trained.label}
        found = [newcomer_score(records, a, seed, client) for a in labels if a in known]
        newcomer, alone = ([_score_text(score, one) for one in found] + [None])[:2]
        return {"newcomer": newcomer, "alone": alone}
    scores: dict[str, ScoreText | None] = {}
    for what, label in zip(("this model", "trained alone"), labels, strict=False):
        table = client_scores(records, label, seed)
        scores[what] = None
        if client in table.index:
            one = Estimate(*table.loc[client, list(Estimate._fields)])
            scores[what] = _score_text(score, one)
    sizes = records.clients.set_index(["seed", "client"])["test"]
    gain = _gain(records, trained)
    tested = int(sizes[seed, client])
    return {"newcomer": None, "tested": tested, "scores": scores, "gain": gain}


def _gain(records: Records, trained: TrainedModel) -> str | dict[str, Any] | None:
    """What this client gains over training alone, over all seeds.

    Returns:
        Text if there is nothing to compare with; None if the gain is not known.
    """
    score, local = score_of(records), local_label(records)
    if trained.label == local:
        return "alone"
    if local is None:
        return "no baseline"
    gain = gain_of(records, trained.label)
    if trained.client not in gain.clients.index:
        return None
    row = {str(k): column[trained.client] for k, column in gain.clients.items()}
    lead = gain_over_baseline(records, trained.label, CONSTANT)
    leads = {} if lead is None else lead.clients["mean"].to_dict()
    return {
        "seeds": several(gain.seeds, "seed"),
        "mean": score.show_gain(row["mean"]),
        "interval": score.show_interval(row["low"], row["high"]),
        "samples": gain.samples,
        "verdict": {
            "gains": "it gains",
            "loses": "it loses",
            "cannot tell": "we cannot tell whether it gains",
        }.get(row["verdict"], "it cannot be compared"),
        "constant": leads.get(trained.client, 1.0) <= 0,
    }


def partner_text(records: Records, trained: TrainedModel) -> Markup:
    """Which clients the client learned with, and which parameters it did not share."""
    home = records.study.get("model", {}).get("personal", [])
    return _render("partners.md", home=home, **_partners(records, trained)).strip()


def _partners(records: Records, trained: TrainedModel) -> dict[str, Any]:
    """The weights of this client's row, largest first, or why there are none."""
    if dict(planned_algorithms(records)).get(trained.label) == "local":
        return {"reason": "alone"}
    table = records.clients
    clients = table.loc[table["seed"] == trained.seed, "client"].tolist()
    if trained.client not in clients:
        return {"reason": "late"}
    names = [full_name(records.names, k) for k in clients]
    key, place = (trained.label, trained.seed), clients.index(trained.client)
    found, groups = records.weights.get(key), records.groups.get(key)
    if found is not None:
        t, row = found.rounds[-1], np.asarray(found.matrices[-1][place], dtype=float)
    elif groups is not None:
        t, row = groups.rounds[-1], groups.weights(-1, [place])[0]
    else:
        return {"reason": "unknown", "count": len(names), "who": names[:_PARTNERS]}
    total = float(row.sum())
    whole = 0.999 < total < 1.001  # the sum is 1 up to single precision
    row = row if whole else row / (total or 1.0)
    order = [int(k) for k in np.argsort(-row, kind="stable") if row[k] > 0]
    return {
        "reason": "",
        "round": int(t),
        "total": None if whole else total,
        "weights": [(names[k], k == place, row[k]) for k in order[:_PARTNERS]],
        "rest": [row[k] for k in order[_PARTNERS:]],
    }


def _costs(records: Records, label: str) -> dict[str, str]:
    own, local = costs_of(records, label), local_label(records)
    alone = costs_of(records, local)["gradients"] if local not in (None, label) else 0
    times = own["gradients"] / alone if alone > 0 else 0
    return {
        "gradients": large(own["gradients"]),
        "times": as_many(times, "gradients", "training alone") if alone > 0 else "",
        "sent": in_bytes(own["bytes"]),
        "seconds": seconds_of(own["seconds"]),
    }

"""The model card: what a model is, how good, who it learned with, and how to use it.

It is a page in Markdown for whoever gets the folder of an exported model and nothing
else. Names come from other people's files, so that what means something in Markdown is
marked, and control characters are shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..checks import several
from ..data.federation import full_name
from ..data.looking.dates import ORIGIN
from ..models import OBJECTIVES
from ..privacy.mechanisms.noise import simulated_text
from ..records import Records
from ..records.cells import CONSTANT
from ..scores.baselines import over_baseline
from ..scores.finals import Score, baseline_of, planned_algorithms, score_of
from ..scores.gains import client_scores, gain_of, newcomer_score
from ..scores.intervals import Estimate
from ..scores.keeping import keeping
from ..scores.roles import promised_to
from ..scores.summaries import costs_of
from ..scores.words import as_many, in_bytes, large, seconds_of
from .predictions import ABOUT
from .programs import ONNX, PROGRAM, WEIGHTS
from .runs import Trained

_PARTNERS = 20
"""So many others, those with the largest weights, are listed by name."""


def written(text: object) -> str:
    r"""A text as Markdown shows it as it is.

    >>> written("a|b <i>")
    'a\\|b \\<i\\>'
    """
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))
    return re.sub(r"([\\`*_{}\[\]<>#|!~&$])", r"\\\1", shown)


def card(records: Records, trained: Trained, about: dict[str, Any]) -> str:
    """The page of one model, of which model.json says what it is `about`."""
    records = keeping(records)  # until the page is made
    sections = {
        "What it predicts": _task_lines(about),
        "How good it is": _score_lines(records, trained),
        "Who it learned with": partner_lines(records, trained),
        "What it cost": _cost_lines(records, trained.label),
        "How to use it": _use_lines(about),
        "Files": _file_lines(about),
        "Versions": _version_lines(about),
        "Limits": _limit_lines(records, trained),
    }
    name, study = written(about["client"]), written(about["study"])
    what = written(about["model"]["name"])
    lines = [
        f"# Model of {name}",
        "",
        f"A model `{what}` with {trained.size():,} trained numbers, which "
        f"{written(trained.label)} made in the study {study} (seed {trained.seed}). "
        f"{written(about['chosen'])}",
        *privacy_lines(records, trained),
    ]
    for title, found in sections.items():
        lines += ["", f"## {title}", "", *found]
    return "\n".join(lines) + "\n"


def privacy_lines(records: Records, trained: Trained) -> list[str]:
    """What its client has released in training; nothing without [privacy]."""
    settings, table = records.study.get("privacy"), records.metrics
    if not isinstance(settings, dict) or "epsilon" not in table:
        return []
    own = table[
        (table["algorithm"] == trained.label)
        & (table["seed"] == trained.seed)
        & (table["client"] == trained.client)
    ]
    if own.empty:
        return []
    spent, unit = float(own["epsilon"].iloc[-1]), settings.get("unit", "client")
    text = (
        f"Privacy of what its client sent in training: epsilon {spent:.3g} at delta "
        f"{settings.get('delta', 1e-5):g}, unit {unit}, in the eyes of "
        f"{promised_to(settings)}."
    )
    simulated = simulated_text(settings.get("noise_source", "seed"))
    return ["", f"{text} **{simulated}**" if simulated else text]


def _task_lines(about: dict[str, Any]) -> list[str]:
    target = written(about["table"]["target"])
    of_column = f" of the column {target}" * bool(target)
    lines = [f"Task: {about['task']}{of_column}."]
    if (about["preparation"] or {}).get("unit"):
        lines += ["", "Predictions are in the unit of the data."]
    if about["classes"]:
        lines += ["", f"Classes in order: {_listed(about['classes'])}."]
    if about["task"] == "binary":
        name = written(about["classes"][1]) if about["classes"] else "1"
        lines += ["", f"Sensitivity, F1 and AUC are about the class {name}."]
    if about["preparation"] is None:
        return lines
    lines += ["", "| column | kind | categories |", "|---|---|---|"]
    for column in about["preparation"]["columns"]:
        words = _listed(column["categories"])
        if column.get("date"):
            words = f"days since {ORIGIN}, written {written(column['date'])}"
        if column.get("gaps"):
            words = f"{_listed(column['gaps'])}: no value"
        lines.append(f"| {written(column['name'])} | {column['kind']} | {words} |")
    return lines


def _listed(words: Sequence[str]) -> str:
    return ", ".join(map(written, words))


def _score_lines(records: Records, trained: Trained) -> list[str]:
    """Scores on the client's own test data, this model's and over seeds."""
    score, client, seed = score_of(records), trained.client, trained.seed
    late = records.newcomers
    if not late.empty:
        mine = late[(late["client"] == client) & (late["seed"] == seed)]
        if len(mine):
            labels = [trained.label]
            local = baseline_of(records)
            if local in set(mine["algorithm"]) - {trained.label}:
                labels.append(str(local))
            found = [newcomer_score(records, a, seed, client) for a in labels]
            shown = [
                f"{score.show(float(one.mean))} (95 % interval {_ends(score, one)})"
                for one in found
            ]
            text = f"{written(_name(records, client))} joined after training. "
            return [f"{text}Its {score.words}: {'; trained alone, '.join(shown)}."]
    return [*_own_lines(records, trained), "", *_gain_lines(records, trained)]


def _own_lines(records: Records, trained: Trained) -> list[str]:
    """A table: this model and training alone, on the same test samples."""
    score, client, seed = score_of(records), trained.client, trained.seed
    sizes = records.clients.set_index(["seed", "client"])["test"]
    local = baseline_of(records)
    labels = {"this model": trained.label}
    if local is not None and local != trained.label:
        labels["trained alone"] = local
    lines = [
        f"On {sizes[seed, client]:,} test samples of its own, which no part of "
        "training or choosing has seen:",
        "",
        f"| | {score.words} | 95 % interval |",
        "|---|---|---|",
    ]
    for what, label in labels.items():
        found = client_scores(records, label, seed)
        if client not in found.index:
            lines.append(f"| {what} | not known | |")
            continue
        one = Estimate(*found.loc[client, list(Estimate._fields)])
        shown = f"{score.show(float(one.mean))} | {_ends(score, one)}"
        lines.append(f"| {what} | {shown} |")
    return lines


def _ends(score: Score, found: Estimate) -> str:
    """The interval of a score in words."""
    low, high = float(found.low), float(found.high)
    if not np.isfinite(high - low):
        return "unknown"
    return f"{score.show(low)} to {score.show(high)}"


def _gain_lines(records: Records, trained: Trained) -> list[str]:
    """What this client gains over training alone, with all seeds."""
    score, local = score_of(records), baseline_of(records)
    if trained.label == local:
        return ["It was trained alone."]
    if local is None:
        return ["The study has no training alone to compare with."]
    gain = gain_of(records, trained.label)
    if trained.client not in gain.clients.index:
        return ["It cannot be compared with training alone."]
    row = {str(k): column[trained.client] for k, column in gain.clients.items()}
    verdict = {
        "gains": "it gains",
        "loses": "it loses",
        "cannot tell": "we cannot tell whether it gains",
    }.get(row["verdict"], "it cannot be compared")
    seeds = several(gain.seeds, "seed")
    ends = f"95 % interval {score.show_interval(row['low'], row['high'])}"
    counted = "seeds and test samples" if gain.samples else "seeds alone"
    line = (
        f"Against training alone, with {seeds}: {score.show_gain(row['mean'])}, {ends} "
    )
    line += f"({counted} are counted): {verdict}."
    constant = over_baseline(records, trained.label, CONSTANT)
    if constant is not None and trained.client in constant.clients.index:
        if constant.clients["mean"][trained.client] <= 0:
            line += " A constant prediction is at least as good."
    return [line]


def _name(records: Records, client: int) -> str:
    return full_name(records.names, client)


def partner_lines(records: Records, trained: Trained) -> list[str]:
    """With whom it learned, and what of it stayed at home."""
    lines = _weight_lines(records, trained)
    home = records.study.get("model", {}).get("personal", [])
    if home:
        lines += ["", f"Its parameters of {_listed(home)} were never sent to anybody."]
    return lines


def _weight_lines(records: Records, trained: Trained) -> list[str]:
    """The weights of this client's row, the largest first."""
    names = dict(planned_algorithms(records))
    if names.get(trained.label) == "local":
        return ["With nobody: it was trained alone."]
    table = records.clients
    clients = table.loc[table["seed"] == trained.seed, "client"].tolist()
    if trained.client not in clients:
        return ["It joined after training, and learned with nobody."]
    key, place = (trained.label, trained.seed), clients.index(trained.client)
    found, groups = records.weights.get(key), records.groups.get(key)
    who = _listed([_name(records, k) for k in clients[:_PARTNERS]])
    more = len(clients) - _PARTNERS
    who += f" and {more:,} more" * (more > 0)
    if found is not None:
        t, row = found.rounds[-1], np.asarray(found.matrices[-1][place], dtype=float)
    elif groups is not None:
        t, row = groups.rounds[-1], groups.weights(-1, [place])[0]
    else:
        return [
            f"{len(clients):,} clients trained: {who}. This method tells no weights of "
            "collaboration, or there were too many clients to keep them."
        ]
    order = [k for k in np.argsort(-row, kind="stable") if row[k] > 0]
    total, shares = float(row.sum()), ""
    if not 0.999 < total < 1.001:  # in single precision
        shares = f", as shares of their sum, which is {total:.3g}"
        row = row / (total or 1.0)
    lines = [
        f"Its weights of collaboration at round {int(t)}{shares}:",
        "",
        f"| client | {'share' if shares else 'weight'} |",
        "|---|---|",
    ]
    for k in order[:_PARTNERS]:
        own = " (itself)" * (clients[k] == trained.client)
        lines.append(f"| {written(_name(records, clients[k]))}{own} | {row[k]:.3f} |")
    rest = row[order[_PARTNERS:]]
    if len(rest):
        lines.append(f"| {len(rest):,} more, together | {rest.sum():.3f} |")
    return lines


def _cost_lines(records: Records, label: str) -> list[str]:
    own, local = costs_of(records, label), baseline_of(records)
    gradients = f"{large(own['gradients'])} gradients of single samples"
    alone = costs_of(records, local)["gradients"] if local not in (None, label) else 0
    if alone > 0:
        many = as_many(own["gradients"] / alone, "gradients", "training alone")
        gradients += f" ({many})"
    return [
        f"For all clients together, mean over seeds: {gradients}, "
        f"{in_bytes(own['bytes'])} sent; {seconds_of(own['seconds'])} of training, the "
        "median over seeds."
    ]


def _use_lines(about: dict[str, Any]) -> list[str]:
    shape = ", ".join(str(size) for size in about["input"]["shape"])
    lines = []
    if about["preparation"] is None and about["task"] != "segmentation":
        lines += [
            "New samples in an npz file, as an array `features` of the shape "
            f"({shape}), and if they are known `targets`:",
            "",
            "```sh",
            "coterie predict FOLDER new.npz --out predictions.csv",
            "```",
            "",
        ]
    if about["preparation"] is not None:
        lines += [
            "New rows in a CSV or Parquet file with the columns above:",
            "",
            "```sh",
            "coterie predict FOLDER new.csv --out predictions.csv",
            "```",
            "",
            "From Python, rows hold the columns in this order: numbers (true and false "
            f"are 1 and 0, dates are days since {ORIGIN}), the place of a category in "
            "its list above, from 0, -1 for any other, and NaN for a gap. The "
            "preparation is a part of the programs.",
            "",
        ]
    lines += [
        "```python",
        "import torch",
        "",
        f'program = torch.export.load("{PROGRAM}").module()',
        f"rows = torch.zeros({shape.replace('rows', '5')}, "
        f"dtype=torch.{about['input']['dtype']})",
        "print(program(rows))",
        "```",
        "",
    ]
    outputs = {
        "binary": "one logit; its sigmoid is the probability of the second class",
        "classification": "one number for each class; their softmax is probabilities",
        "segmentation": "one logit for each voxel",
    }.get(about["task"], "the predicted number")
    lines.append(f"Outputs: {outputs}.")
    return [*lines, "", _code_line(about["model"]["name"])]


def _code_line(model: str) -> str:
    """What of the folder can run code, in words."""
    text = (
        f"{PROGRAM} can run code when torch.export loads it: open it only where you "
        f"trust who made it. {WEIGHTS} holds numbers alone. {ABOUT} names the model, "
        "and coterie makes none but its own models from such a name"
    )
    module, own, _ = model.partition(":")
    if not own:
        return f"{text}."
    flag = f"`--trust {module}`" if re.fullmatch(r"[\w.]+", module) else "`--trust`"
    return (
        f"{text}. This one needs the module {written(module)} on Python's path and "
        f"{flag} behind `coterie predict`: then code of that module runs."
    )


def _file_lines(about: dict[str, Any]) -> list[str]:
    lines = ["| file | content | differs from the module by |", "|---|---|---|"]
    what = {
        WEIGHTS: "the weights",
        PROGRAM: "the model as a program, torch.export",
        ONNX: "the model as a program, ONNX",
    }
    for name, text in what.items():
        found = about["files"][name]
        if "skipped" in found:
            lines.append(f"| {name} | not written: {written(found['skipped'])} | |")
        else:
            lines.append(f"| {name} | {text} | {found['difference']:.2g} |")
    return [
        *lines,
        "",
        f"Each was read again and run on {about['tried']} made-up rows. Differences "
        f"are the largest of an output, as a share of 1 + its size; more than "
        f"{about['tolerance']:g} is refused. {ABOUT} has preparation, names, versions "
        "and checksums.",
    ]


def _version_lines(about: dict[str, Any]) -> list[str]:
    lines = ["| | trained with | exported with |", "|---|---|---|"]
    trained, now = about["versions"]["trained"], about["versions"]["exported"]
    for key in dict.fromkeys([*trained, *now]):
        cells = written(trained.get(key, "")), written(now.get(key, ""))
        lines.append(f"| {key} | {cells[0]} | {cells[1]} |")
    return lines


def _limit_lines(records: Records, trained: Trained) -> list[str]:
    name = written(_name(records, trained.client))
    lines = [
        f"- It was made for the data of {name} and measured on those alone; on others' "
        "it may be worse.",
        "- It is the model of one seed; another seed gives another one.",
    ]
    if OBJECTIVES[records.task].labelled:
        lines.append(
            "- Probabilities are those of the model and may be too sure of themselves; "
            "a class of which its training data had few samples is rarely predicted."
        )
    if trained.preparation is not None:
        lines.append(
            "- Gaps are filled and numbers scaled by medians, means and deviations of "
            f"training data, which {ABOUT} and the programs hold; no sample is in any "
            "file. A category that they did not have counts as none of them."
        )
    if isinstance(records.study.get("privacy"), dict):
        lines.append(
            f"- Epsilon covers what {name} sent in training. It does not cover what "
            "this model itself tells of its data, nor the scores, sizes and names on "
            "this page, nor the medians, means and scales of features, nor the choice "
            "of an algorithm by validation data, nor which samples train, validate and "
            "test (docs/data\\_protection.md of coterie)."
        )
    if trained.label in records.oracles:
        lines.append(
            "- Its method was told what nobody knows in practice (true clusters or "
            "optima): it shows what is possible, not what can be had."
        )
    return lines

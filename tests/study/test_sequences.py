"""Claims about studies of token ids and recurrent models."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie.models import ravel
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from coterie.study.setup import federation_of, module_of
from support.hospital_runs import OWN
from support.plain_clients import mine
from support.study_runs import refused

MORE = """
def lstm(shape, outputs, *, width: int = 4):
    return Reader(outputs, width, nn.LSTM)

class Packed(Reader):
    def forward(self, sentences):
        lengths = (sentences > 0).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(
            self.words(sentences), lengths, batch_first=True, enforce_sorted=False
        )
        return self.head(self.recurrent(packed)[1][-1])

def packed(shape, outputs):
    return Packed(outputs, 4, nn.GRU)

def linear(shape, outputs):
    return nn.Linear(shape[0], outputs)
"""


@pytest.fixture
def tables(tmp_path, monkeypatch):
    (tmp_path / "own_sequences.py").write_text(OWN + MORE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return {
        "data": {"name": "own_sequences:sentences"},
        "model": {"name": "own_sequences:gru"},
        "algorithm": [{"name": "local", "lr": 0.5, "steps": 3}],
        "run": {"rounds": 2, "batch_size": 0, "dtype": "float64"},
    }


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_a_study_of_sentences_trains_as_loops_over_modules_do(tables, tmp_path, name):
    tables["model"] = {"name": f"own_sequences:{name}"}
    study = study_of(tables)
    result = run_study(study, runs=tmp_path)
    federation = federation_of(study, 0)
    for client in range(3):
        index = mine(federation, client)
        model = module_of(study, federation, 0)
        for _ in range(6):
            outputs = model(federation.features[index])[:, 0]
            truth = federation.targets[index].double()
            loss = nn.functional.binary_cross_entropy_with_logits(outputs, truth)
            grads = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, g in zip(model.parameters(), grads, strict=True):
                    parameter -= 0.5 * g
        # Sums of some hundred products in double precision, in another order.
        found, expected = result.models()[client], ravel(model)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
        trained = result.model(client)
        right = (trained(federation.features[index])[:, 0] > 0) == (truth > 0.5)
        last = result.records.metrics.query(f"round == 2 and client == {client}")
        assert last["train_accuracy"].item() == pytest.approx(right.double().mean())


def test_debug_mode_gives_the_same(tables, tmp_path):
    tables["run"] = {"rounds": 2, "dtype": "float64"}
    tables["algorithm"] = [{"name": "fedavg", "lr": 1.0}]
    found = []
    for loop in (False, True):
        tables["run"]["loop"] = loop
        found.append(run_study(study_of(tables), runs=tmp_path).models())
    # Sums of some hundred products in double precision, in another order.
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("packed", "cannot be computed for all clients at once: "),
        ("linear", "`model` does not fit the data `words` with features of shape"),
    ],
)
def test_models_that_cannot_read_sentences_are_refused(tables, tmp_path, name, message):
    tables["model"] = {"name": f"own_sequences:{name}"}
    refused(tables, tmp_path, message)

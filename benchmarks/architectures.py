"""The models of the benchmarks of speed, as one would write them in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from coterie.models import cnn, lenet, mlp

GREY, COLOUR, SERIES = (1, 28, 28), (3, 32, 32), (32, 16)


def cnn_582k() -> nn.Module:
    """The model of PFLlib and of the first paper on FedAvg, without padding."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


class Block(nn.Module):
    """Two convolutions of ResNet-18, with group normalisation."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(8, after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(8, after)
        self.skip = nn.Sequential()
        if stride > 1 or before != after:
            self.skip.append(nn.Conv2d(before, after, 1, stride, bias=False))
            self.skip.append(nn.GroupNorm(8, after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(self.conv1(x)).relu()
        return (self.norm2(self.conv2(h)) + self.skip(x)).relu()


def resnet_18() -> nn.Module:
    """ResNet-18 for small images: 11.2 million parameters."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 3, 1, 1, bias=False),
        nn.GroupNorm(8, 64),
        nn.ReLU(),
    ]
    before = 64
    for after, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(before, after, stride), Block(after, after, 1)]
        before = after
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(*layers)


class Lstm(nn.Module):
    """An LSTM with a linear layer on its last output."""

    def __init__(self, width: int = 64, layers: int = 1) -> None:
        super().__init__()
        self.body = nn.LSTM(SERIES[1], width, layers, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)[0][:, -1])


class Transformer(nn.Module):
    """Layers of attention on a series, and the mean of their outputs."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.first = nn.Linear(SERIES[1], width)
        self.body = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 2 * width, dropout=0.0, batch_first=True
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        for layer in self.body:
            h = layer(h)
        return self.head(h.mean(1))


class Model(NamedTuple):
    """A model, and the shape of a sample."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


def _perceptron(*hidden: int) -> Callable[[], nn.Module]:
    return lambda: mlp((784,), 10, hidden=list(hidden))


MODELS = {
    model.name: model
    for model in (
        Model("linear", _perceptron(), (784,)),
        Model("MLP 784-80-60-10", _perceptron(80, 60), (784,)),
        Model("MLP 784-512-512-10", _perceptron(512, 512), (784,)),
        Model("MLP of 10 layers of 64", _perceptron(*[64] * 10), (784,)),
        Model("CNN 21k", lambda: cnn(GREY, 10), GREY),
        Model("LeNet", lambda: lenet(COLOUR, 10), COLOUR),
        Model("CNN 582k", cnn_582k, GREY),
        Model("ResNet-18", resnet_18, COLOUR),
        Model("LSTM 16", lambda: Lstm(16), SERIES),
        Model("LSTM 128", lambda: Lstm(128), SERIES),
        Model("transformer 16", lambda: Transformer(16, 1), SERIES),
        Model("transformer 128", lambda: Transformer(128, 2), SERIES),
    )
}

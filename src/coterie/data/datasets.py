"""Data sets by name. The keyword-only parameters of a loader are its options.

A loader looks for files in `data_dir`. The default is the folder that the environment
variable COTERIE_DATA names, or ~/.cache/coterie. Files lie there directly, or in a
folder with the name of the data set. They are downloaded only with `download=True`.
"""

from __future__ import annotations

import functools
import gzip
import inspect
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from .. import checks
from ..checks import InputError, import_object, integer, one_of, parameters_of
from . import files, synthetic
from .downloads import (
    CIFAR,
    FASHION_MNIST,
    HEART,
    HOUSES,
    MNIST,
    QMNIST,
    find,
    obtain,
)
from .federation import Table
from .hard_instance import hard_instance
from .libraries.hugging_face import hugging_face
from .libraries.leaf import leaf
from .libraries.pfllib import pfllib
from .rows.images import Images
from .rows.jpegs import Jpegs

_CIFAR_JPEG = "cifar10_jpeg75_bytes.npz"


def digits() -> Table:
    """1,797 handwritten digits of 8 x 8 pixels, bundled with scikit-learn."""
    images, labels = _digits()
    pixels = torch.tensor(images / 16, dtype=torch.float32)
    return Table("digits", pixels, torch.tensor(labels), "classification", 10)


@functools.cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    """The pixels and labels, cached because the file is slow to read."""
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)


def _idx(path: Path) -> np.ndarray:
    """The array in a gzipped idx file of bytes or of 32-bit integers."""
    raw = gzip.decompress(path.read_bytes())
    kind, dimensions = raw[2], raw[3]
    shape = np.frombuffer(raw, ">i4", dimensions, offset=4)
    dtype = {0x08: "u1", 0x0C: ">i4"}[kind]
    return np.frombuffer(raw, dtype, offset=4 + 4 * dimensions).reshape(shape)


def _grey(name: str, paths: list[Path], mean: float, std: float) -> Table:
    """The table of a data set in MNIST's format.

    Args:
        name: the name of the data set.
        paths: training images, training labels, test images, test labels.
        mean: the mean of all pixels.
        std: the standard deviation of all pixels.
    """
    images = np.concatenate([_idx(paths[0]), _idx(paths[2])])[:, None]
    labels = np.concatenate([_idx(paths[1]), _idx(paths[3])])
    return Table(
        name,
        Images(images, [mean], [std]),
        torch.tensor(labels, dtype=torch.int64),
        "classification",
        10,
        is_test=torch.arange(len(labels)) >= len(_idx(paths[1])),
        files=tuple(paths),
    )


def mnist(*, data_dir: str = "", download: bool = False) -> Table:
    """70,000 handwritten digits of 28 x 28 pixels (LeCun, Cortes and Burges)."""
    paths = obtain(MNIST, ["mnist"], data_dir=data_dir, download=download)
    return _grey("mnist", paths, 0.1307, 0.3081)


def fashion_mnist(*, data_dir: str = "", download: bool = False) -> Table:
    """70,000 articles of clothing of 28 x 28 pixels (Xiao, Rasul and Vollgraf)."""
    folders = ["fashion_mnist"]
    paths = obtain(FASHION_MNIST, folders, data_dir=data_dir, download=download)
    return _grey("fashion_mnist", paths, 0.2860, 0.3530)


def writers(
    *,
    min_images: int = 50,
    limit: int = 0,
    data_dir: str = "",
    download: bool = False,
) -> Table:
    """The training digits of MNIST, where each writer is a client (QMNIST labels).

    Args:
        min_images: writers with fewer images are left out.
        limit: the largest number of remaining writers to keep; 0 keeps all.
        data_dir: the folder of the files of `mnist` and `qmnist_writers`.
        download: whether to download missing files.
    """
    integer("min_images", min_images, at_least=1)
    integer("limit", limit, at_least=0)
    images, labels = obtain(MNIST[:2], ["mnist"], data_dir=data_dir, download=download)
    (extended,) = obtain(
        QMNIST,
        ["qmnist_writers", "writers", "qmnist"],
        data_dir=data_dir,
        download=download,
    )
    # Columns: class, series, writer, ...; row i describes image i of MNIST.
    writer = _idx(extended)[:, 2].astype(np.int64)
    names, sizes = np.unique(writer, return_counts=True)
    kept = names[sizes >= min_images][: limit or None]
    if len(kept) == 0:
        raise InputError(
            f"`min_images` must be at most {sizes.max()}, the largest number of images "
            f"of one writer, got {min_images}."
        )
    mine = np.isin(writer, kept)
    return Table(
        "writers",
        Images(_idx(images)[mine][:, None], [0.1307], [0.3081]),
        torch.tensor(_idx(labels)[mine], dtype=torch.int64),
        "classification",
        10,
        group=torch.from_numpy(np.searchsorted(kept, writer[mine])),
        files=(images, labels, extended),
    )


def cifar10(*, data_dir: str = "", download: bool = False) -> Table:
    """60,000 colour photographs of 32 x 32 pixels in 10 classes (Krizhevsky)."""
    folders = ["cifar10"]
    exact = find(CIFAR[0].file, folders, data_dir)
    jpeg = find(_CIFAR_JPEG, folders, data_dir)
    images: np.ndarray | Jpegs
    note = name = ""
    if exact is None and jpeg is not None and not download:
        path, images = jpeg, Jpegs(jpeg)
        labels, tests, name = images.labels, images.tests, images.name
        note = "the images were stored as JPEG of quality 75 and are not bit-exact."
    else:
        (path,) = obtain(CIFAR, folders, data_dir=data_dir, download=download)
        images, labels, tests = _cifar_binary(path)
    mean, std = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]
    return Table(
        "cifar10",
        Images(images, mean, std, name=name),
        torch.tensor(labels, dtype=torch.int64),
        "classification",
        10,
        is_test=torch.arange(len(labels)) >= len(labels) - tests,
        note=note,
        files=(path,),
    )


def _cifar_binary(path: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Images (M, 3, 32, 32), labels, and the number of test images at the end."""
    batches = [f"data_batch_{number}.bin" for number in range(1, 6)] + [
        "test_batch.bin"
    ]
    found: dict[str, bytes] = {}
    # One pass in the order of the archive, because each step back decompresses again.
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None:
                found[Path(member.name).name] = content.read()
    raw = np.frombuffer(b"".join(found[batch] for batch in batches), np.uint8)
    records = raw.reshape(-1, 1 + 3 * 32 * 32)
    tests = len(found[batches[-1]]) // records.shape[1]
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0], tests


def heart_disease(*, data_dir: str = "", download: bool = False) -> Table:
    """740 patients of four hospitals, 13 features: is there a heart disease?

    The preprocessing and the test parts are the same as in FLamby. Columns 10 to 12 and
    incomplete rows are dropped, and columns 2 and 6 are encoded one-hot. A third of
    each hospital is for testing. Each hospital standardises with the mean and deviation
    of its training part.

    Ogier du Terrail et al., "FLamby: datasets and benchmarks for cross-silo federated
    learning in realistic healthcare settings", NeurIPS 2022.
    """
    paths = obtain(HEART, ["heart_disease"], data_dir=data_dir, download=download)
    hospitals = [
        pd.read_csv(path, header=None, na_values="?")
        .drop(columns=[10, 11, 12])
        .dropna()
        for path in paths
    ]
    sizes = torch.tensor([len(hospital) for hospital in hospitals])
    patients = pd.concat(hospitals, ignore_index=True)
    labels = (patients[13] != 0).to_numpy(np.int64)
    coded = pd.get_dummies(patients.drop(columns=13), columns=[2, 6], drop_first=True)
    features = torch.tensor(coded.to_numpy(np.float64))
    group = torch.arange(len(paths)).repeat_interleave(sizes)
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    for number in range(len(paths)):
        mine = (group == number).nonzero()[:, 0]
        is_test[mine] = _flamby_test(labels[mine])
        train = features[mine[~is_test[mine]]]
        features[mine] = (features[mine] - train.mean(0)) / (train.std(0) + 1e-9)
    return Table(
        "heart_disease",
        features.float(),
        torch.from_numpy(labels),
        "binary",
        1,
        group=group,
        is_test=is_test,
        files=tuple(paths),
        names=("Cleveland", "Hungary", "Switzerland", "Long Beach VA"),
    )


def _flamby_test(labels: np.ndarray) -> Tensor:
    """Which patients of one hospital FLamby keeps for testing."""
    from sklearn.model_selection import train_test_split

    counts = np.bincount(labels, minlength=2)
    _, test = train_test_split(
        np.arange(len(labels)),
        train_size=0.66,
        test_size=1 - 0.66,
        random_state=43,
        stratify=labels if (counts > 2).all() else None,
    )
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    chosen[torch.from_numpy(test)] = True
    return chosen


def houses(
    *,
    target: str = "value",
    bands: int = 4,
    data_dir: str = "",
    download: bool = False,
) -> Table:
    """20,640 districts of California with the value of their houses (1990 census).

    Clients are regions. Latitude divides the districts into `bands` bands of equal
    size, and longitude divides each band into `bands` regions of equal size. All
    columns are standardised over the whole data set.

    Args:
        target: "value" is the logarithm of the median value, standardised; "longitude"
            is the binary task of OpenML data set 823: does a district lie west of the
            mean longitude, given the other columns?
        bands: there are bands * bands clients.
        data_dir: the folder of the file.
        download: whether to download a missing file.
    """
    one_of("target", target, ["value", "longitude"])
    integer("bands", bands, at_least=1, at_most=50)
    raw, path = _houses(data_dir, download)
    scaled = (raw - raw.mean(0)) / raw.std(0)
    if target == "longitude":
        features, targets = scaled[:, 1:], (scaled[:, 0] < 0).long()
        task = "binary"
    else:
        value = raw[:, -1].log()
        features = scaled[:, :-1]
        targets = ((value - value.mean()) / value.std()).float()
        task = "regression"
    band = _bands(raw[:, 1], torch.zeros(len(raw)).long(), bands)
    group = _bands(raw[:, 0], band, bands)
    return Table(
        "houses", features.float(), targets, task, 1, group=group, files=(path,)
    )


def _houses(data_dir: str, download: bool) -> tuple[Tensor, Path]:
    """The values (20640, 9), with longitude and latitude first and the value last."""
    plain = find("cal_housing.data", ["houses"], data_dir)
    if plain is not None:
        path, text = plain, plain.read_text()
    else:
        (path,) = obtain(HOUSES, ["houses"], data_dir=data_dir, download=download)
        with tarfile.open(path, "r:gz") as archive:
            content = archive.extractfile("CaliforniaHousing/cal_housing.data")
            assert content is not None  # the hash of the archive is right
            text = content.read().decode()
    try:
        raw = torch.tensor(np.loadtxt(io.StringIO(text), delimiter=","))
    except ValueError as error:
        raise InputError(f"{path} is corrupted: {error}.") from error
    if raw.shape != (20640, 9):
        raise InputError(
            f"{path} is corrupted: it must have 20640 rows of 9 numbers, got "
            f"{tuple(raw.shape)}."
        )
    return raw, path


def _bands(values: Tensor, within: Tensor, count: int) -> Tensor:
    """(M,) the band of each value: `count` equal bands in each group of `within`."""
    band = torch.empty_like(within)
    for number in range(int(within.max()) + 1):
        mine = (within == number).nonzero()[:, 0]
        order = mine[values[mine].argsort(stable=True)]
        band[order] = number * count + torch.arange(len(mine)) * count // len(mine)
    return band


DATASETS: dict[str, Callable[..., Table]] = {
    "cifar10": cifar10,
    "digits": digits,
    "fashion_mnist": fashion_mnist,
    "file": files.table,
    "hard_instance": hard_instance,
    "heart_disease": heart_disease,
    "houses": houses,
    "hugging_face": hugging_face,
    "leaf": leaf,
    "linear": synthetic.linear,
    "linear_thirds": synthetic.linear_thirds,
    "logistic": synthetic.logistic,
    "mean_estimation": synthetic.mean_estimation,
    "mnist": mnist,
    "pfllib": pfllib,
    "volumes": synthetic.volumes,
    "writers": writers,
}


def load(name: str, /, *, seed: int = 0, **options: object) -> Table:
    """The data set with this name, or the result of the function "module:function".

    Args:
        name: a key of DATASETS or "module:function".
        seed: the seed for loaders that have a parameter `seed`.
        options: the loader's other parameters.
    """
    loader = _loader(name)
    if depends_on_seed(name):
        options["seed"] = seed
    checks.options("data", name, parameters_of(loader, ingredients=0), options)
    with checks.own_code("data.name", name):
        table = loader(**options)
    if not isinstance(table, Table):
        raise InputError(
            f"{name} must return a coterie Table, got {type(table).__name__}."
        )
    return table


def depends_on_seed(name: str) -> bool:
    """Whether the data set of that name is generated from a seed."""
    return "seed" in inspect.signature(_loader(name)).parameters


def _loader(name: str) -> Callable[..., Table]:
    """The loader of that name."""
    if ":" not in name:
        one_of("data.name", name, DATASETS)
        return DATASETS[name]
    loader = import_object("data.name", name)
    return checks.readable("data.name", name, loader)

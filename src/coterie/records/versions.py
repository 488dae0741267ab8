"""The software and hardware that made a cell."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import torch


def versions(device: torch.device) -> dict[str, str]:
    """The software and hardware that results may depend on."""
    try:
        own = version("coterie")
    except PackageNotFoundError:  # run from the source, not installed
        own = "source"
    hardware = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    return {
        "coterie": own,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.system(),
        "device": hardware,
    }

"""Makes PNG files for docs/gallery.md of the pages that reproductions write.

    python docs/pictures/gallery.py        after the items; it needs Chromium

Run it where the folder `runs` of the items is. A page that is not there is left out.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent / "reproduced"
PAGES = {
    # Picture: page below `runs`, width, height.
    "philippenko2025_figure1": ("philippenko2025-fig1/figure1.html", 720, 480),
    "philippenko2025_figure2": ("philippenko2025-fig2/figure2.html", 960, 480),
    "philippenko2025_training": ("philippenko2025-heart/training.html", 960, 480),
    "philippenko2025_mnist": ("philippenko2025-mnist/training.html", 960, 480),
    "philippenko2025_cifar10": ("philippenko2025-cifar10/training.html", 960, 480),
    "even2022_figure1a": ("even2022-fig1a/figure1.html", 720, 480),
    "even2022_figure1b": ("even2022-fig1b/figure1.html", 720, 500),
    "even2024_figure81": ("even2022-chapter8-figure/figure81.html", 1380, 520),
    "even2024_continuized": ("even2024-chapter2/continuized.html", 1380, 470),
    "even2024_gossip": ("even2024-chapter2/gossip.html", 1380, 750),
    "even2024_figure31": ("even2024-chapter3/figure31.html", 960, 830),
    "even2024_figure41": ("even2024-chapter4/figure41.html", 1380, 840),
    "even2024_stragglers": ("even2024-chapter5/stragglers.html", 1380, 1310),
    "even2024_figure61a": ("even2024-chapter6/figure61a.html", 960, 830),
    "even2024_nodes": ("even2024-chapter6/nodes.html", 1380, 1870),
    "even2024_figure61c": ("even2024-chapter6/figure61c.html", 960, 480),
    "even2024_figure63": ("even2024-chapter6/figure63.html", 960, 480),
    "even2024_figure66": ("even2024-chapter6/figure66.html", 960, 480),
    "even2024_rounds": ("even2024-chapter10/rounds.html", 1380, 480),
    "even2024_steps": ("even2024-chapter11/steps.html", 960, 480),
    "even2024_shapes": ("even2024-chapter11/shapes.html", 960, 480),
    "even2024_edge": ("even2024-chapter11/edge.html", 1380, 480),
}


def photograph(browser: str, address: str, target: Path, size: str) -> None:
    """Takes a picture of a page, with width and height in pixels."""
    flags = "--headless --no-sandbox --disable-gpu --hide-scrollbars".split()
    flags += ["--virtual-time-budget=8000", f"--window-size={size}"]
    command = [browser, *flags, f"--screenshot={target}", address]
    subprocess.run(command, check=True, capture_output=True)


def main() -> None:
    """Makes all pictures whose pages are there."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        raise SystemExit("Install Chromium, so that `chromium` can be run.")
    HERE.mkdir(exist_ok=True)
    for name, (page, width, height) in PAGES.items():
        path = Path("runs") / page
        if not path.exists():
            print(f"runs/{page} is missing: {name}.png stays as it is")
            continue
        target = HERE / f"{name}.png"
        photograph(browser, path.resolve().as_uri(), target, f"{width},{height}")
        print(target)


if __name__ == "__main__":
    main()

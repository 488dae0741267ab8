"""Makes the screenshots of the documentation: a report, a run that is watched, a hub.

    python docs/pictures/screens.py        some minutes; it needs Chromium

It trains the eight hospitals of the example, and starts a hub with three of them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

import pandas as pd
from gallery import photograph

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HOSPITALS = ROOT / "examples" / "hospitals.csv"
NAMES = ("Aarau", "Basel", "Bern")
STUDY = """\
name = "hospitals"
[data]
path = "examples/hospitals.csv"
client = "hospital"
target = "outcome"
[split]
test = 0.3
[model]
name = "logistic"
[run]
rounds = 200
evaluate_every = 20
batch_size = 16
[[algorithm]]
name = "local"
lr = 0.1
[[algorithm]]
name = "fedavg"
lr = 0.1
"""


def coterie(folder: Path, *words: str) -> subprocess.Popen[str]:
    """A process of the command `coterie` in this folder, whose output is a text."""
    line = [sys.executable, "-m", "coterie", *words]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(line, cwd=folder, text=True, **pipe)


def finish(process: subprocess.Popen[str]) -> str:
    """What a process printed, after it has ended well."""
    text = process.communicate()[0]
    if process.returncode:
        raise SystemExit(text)
    return text


def wait_for(path: Path, pattern: str) -> Path:
    """The first file below a folder that matches a pattern, as soon as it is there."""
    for _ in range(3000):
        if found := sorted(path.glob(pattern)):
            return found[0]
        time.sleep(0.1)
    raise SystemExit(f"no {pattern} in {path} after five minutes")


def still(text: str, page: Path) -> str:
    """The address of a copy of a page that does not reload itself."""
    page.write_text(re.sub(r"<meta http-equiv=.refresh[^>]*>", "", text), "utf-8")
    return page.as_uri()


def report_and_watch(browser: str, folder: Path) -> None:
    """Takes pictures of a run that trains, and of the report of the example."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    long = ("--set", "run.rounds=1000", "--set", "run.seeds=[0, 1, 2]", "--quiet")
    run = coterie(folder, "run", "examples/hospitals.toml", *long)
    scores = wait_for(folder, "runs/*/metrics.csv")
    while "\nfedavg,1," not in scores.read_text("utf-8") and run.poll() is None:
        time.sleep(0.5)
    place = scores.parent
    watching = coterie(folder, "watch", str(place), "--page")
    page = wait_for(place, "watch.html")
    address = still(page.read_text("utf-8"), folder / "watch.html")
    photograph(browser, address, HERE / "watch.png", "1000,900")
    run.kill()
    finish(watching)
    shutil.rmtree(folder / "runs")
    finish(coterie(folder, "run", "examples/hospitals.toml", "--quiet"))
    page = wait_for(folder, "runs/hospitals-*/report.html")
    photograph(browser, page.as_uri(), HERE / "report.png", "1000,900")


def page_in_training(address: str) -> str:
    """The page of a hub as soon as all members have finished some steps."""
    for _ in range(600):
        time.sleep(1)
        with urlopen(address) as answer:
            text = answer.read().decode()
        steps = [int(found) for found in re.findall(r"<td[^>]*>(\d+)</td>", text)]
        if steps and min(steps) > 30:
            return text
    raise SystemExit("the members have not begun after ten minutes")


def hub(browser: str, folder: Path) -> None:
    """Starts a hub and three members, and takes a picture of the page of the hub."""
    (folder / "study.toml").write_text(STUDY, encoding="utf-8")
    finish(coterie(folder, "roster", "demo", "study.toml", *NAMES))
    rows = pd.read_csv(HOSPITALS)
    for name in NAMES:
        own = rows[rows["hospital"] == name].drop(columns="hospital")
        own.to_csv(folder / "demo" / name / f"{name}.csv", index=False)
    words = (
        "../../study.toml",
        "--roster",
        "roster.toml",
        "--listen",
        "127.0.0.1:8443",
    )
    processes = [coterie(folder / "demo" / "hub", "hub", *words, "--page")]
    try:
        for line in processes[0].stdout:
            if address := re.search(r"http://\S+", line):
                break
        for name in NAMES:
            place = folder / "demo" / name
            words = ("../../study.toml", "--site", "site.toml")
            processes.append(coterie(place, "join", *words))
        copy = still(page_in_training(address[0]), folder / "hub.html")
        photograph(browser, copy, HERE / "hub.png", "1000,420")
    finally:
        for process in processes:
            process.kill()


def main() -> None:
    """Makes all screenshots."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        raise SystemExit("Install Chromium, so that `chromium` can be run.")
    for make in (report_and_watch, hub):
        with tempfile.TemporaryDirectory() as folder:
            make(browser, Path(folder))


if __name__ == "__main__":
    main()

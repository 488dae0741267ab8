"""Claims about `coterie export --all`: all models, each in a folder, or nothing."""

from __future__ import annotations

import shutil
import unicodedata
from pathlib import Path

import pandas as pd
import pytest

import coterie as co
from coterie.checks import InputError
from coterie.export import default_label, export_all, folders, read_export
from coterie.export.folders import folder_names
from support.called import called
from support.hospitals import write_hospitals
from support.refusals import refusal, refuses

NAMES = ("St. Gallen", "Bern", "bern")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("made")
    frame = pd.read_csv(write_hospitals(place / "h.csv", names=NAMES, patients=12))
    return co.train(
        frame,
        "hospital",
        "outcome",
        ["local", "fedavg"],
        rounds=1,
        runs=place,
        notice=print,
        merge_case=False,  # Bern and bern are two
    ).folder


def test_every_model_is_in_a_folder_of_its_own_and_progress_is_told(folder, tmp_path):
    seen: list[tuple[int, int]] = []
    run = co.load(folder)
    found = export_all(run, tmp_path, progress=lambda *done: seen.append(done))
    assert seen == [(k, 3) for k in range(4)]
    assert list(found) == list(run.names)
    assert len({one.folder.name.lower() for one in found.values()}) == 3
    assert {path.name for path in tmp_path.iterdir()} == {
        one.folder.name for one in found.values()
    }
    for name, one in found.items():
        about = read_export(one.folder).about
        assert about["client"] == name
        assert about["algorithm"] == default_label(run.records)
        assert "chosen by validation data" in about["chosen"]


@pytest.fixture
def quick(monkeypatch) -> None:
    """Checks that these folders hold only a file that marks an export."""

    def fill(folder, run, trained, chosen):
        (folder / "model.json").write_text("{}")
        return ("model.onnx was not written.",)

    monkeypatch.setattr(folders, "_fill", fill)


@pytest.mark.usefixtures("quick")
def test_all_that_is_in_the_way_is_named_before_anything_is_written(folder, tmp_path):
    run = co.load(folder)
    places = [one.folder for one in export_all(run, tmp_path).values()]
    first, second, third = places
    shutil.rmtree(third)
    third.mkdir()
    (second / "mine.txt").write_text("mine")
    said = refusal(export_all, run, tmp_path)
    assert f"{first} and {second} hold exported models already" in said
    assert "use --force" in said and f"{third} is something else" in said
    with pytest.raises(InputError, match=r"holds 'mine\.txt', which is not part"):
        export_all(run, tmp_path, overwrite=True)
    assert not any(third.iterdir())


@pytest.mark.usefixtures("quick")
def test_the_command_writes_all_models_and_replaces_them_if_told(
    folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code, shown, errors = called("export", str(folder), "--all")
    assert errors == "model.onnx was not written.\n"  # once
    assert code == 0 and shown.count("model of ") == 3
    assert len(list(Path("exports").iterdir())) == 3
    refuses("hold exported models already", called, "export", str(folder), "--all")
    words = ("--all", "--force", "--algorithm", "local", "--json")
    assert '"label": "local"' in called("export", str(folder), *words)[1]
    for words in ([], ["--all", "--client", "Bern"]):
        refuses("needs either --client or --all", called, "export", str(folder), *words)


def test_letters_of_any_script_stay():
    names = ["北京医院", "上海", "Москва", "القاهرة", "दिल्ली", "Zürich"]
    assert folder_names(names) == names


def test_two_ways_to_write_an_accent_give_one_way_and_two_folders():
    composed, apart = "Genève", unicodedata.normalize("NFD", "Genève")
    assert composed != apart
    assert folder_names([apart]) == [composed]
    assert folder_names([composed, apart]) == [composed, f"{composed}-2"]


@pytest.mark.parametrize(
    ("client", "folder"),
    [
        ("a/b\\c:d", "a_b_c_d"),
        ("../../etc", "etc"),
        ("...", "client"),
        ("", "client"),
        ("?!", "client"),
        ("nul", "nul_"),
        ("COM1.north", "COM1_.north"),
        ("Bern.", "Bern"),
        ("tab\there\x00", "tab_here"),
        ("\u202eBern", "Bern"),
    ],
)
def test_what_a_file_system_refuses_is_left_out(client, folder):
    assert folder_names([client]) == [folder]


def test_long_names_fit_in_bytes_and_end_with_a_whole_letter(tmp_path):
    first, second = folder_names(["京" * 200, "京" * 201])
    assert first == "京" * 40  # of three bytes each
    assert second == f"{first}-2"
    (tmp_path / second).mkdir()


def test_names_that_some_disks_do_not_tell_apart_get_numbers():
    assert folder_names(["Bern", "BERN", "Straße", "STRASSE"]) == [
        "Bern",
        "BERN-2",
        "Straße",
        "STRASSE-2",
    ]

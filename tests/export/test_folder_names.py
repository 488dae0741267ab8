"""Claims about the names of folders that hold clients' models."""

from __future__ import annotations

import unicodedata

import pytest

from coterie.export.folders import folder_names


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

"""Labels that are missing, that are no words, or that are one word in two spellings."""

import json
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from focoop.cli import app
from focoop.config.loading import load
from focoop.data import read_folder
from focoop.data.class_names import name_of, named_classes
from focoop.data.client_folders import clients_table
from focoop.data.labels import MISSING, is_code, is_missing
from focoop.data.sources import advice
from focoop.data.tables import csv_table
from focoop.errors import DataError
from focoop.scenario.assignment import client_split, make_split
from tests.data.trees import plant, write


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("label", sorted(MISSING))
def test_missing_labels_are_refused_with_their_lines(label: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for written in {label, label.upper(), label.title()}:
        write(path, f"path,label\n1.png,cat\n\n2.png,{written}\n3.png,dog\n4.png,{written}\n")
        with pytest.raises(DataError, match=r"lines 4, 6: no label"):
            csv_table(path)


def test_a_class_that_is_called_none_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write(path, "path,label\n1.png,scratch\n2.png,none\n")
    with pytest.raises(DataError, match="class_names.csv beside .* such as none,no defect"):
        csv_table(path)
    write(tmp_path / "class_names.csv", "none,no defect\n")
    assert csv_table(path).pick("all").classes == ("no defect", "scratch")


def test_folders_called_as_if_they_had_no_label_are_refused(tmp_path: Path) -> None:
    root = plant(tmp_path / "a", "nan/1.png", "cat/1.png")
    with pytest.raises(DataError, match="the class 'nan' is no class"):
        advice("folder", str(root))
    clients = plant(tmp_path / "b", "north/None/1.png", "north/cat/1.png")
    with pytest.raises(DataError, match="the class 'None' is no class"):
        advice("clients", str(clients))
    bare = plant(tmp_path / "c", "train/1.png", "test/1.png")
    with pytest.raises(DataError, match="test, train hold images and no class folders"):
        advice("folder", str(bare))


def test_a_check_tells_all_that_is_doubtful_beside_what_a_run_refuses(tmp_path: Path) -> None:
    classes = ("a/Mug", "a/nan", "b/mug", "b/7")
    root = plant(tmp_path / "sites", *(f"{name}/{i}.png" for name in classes for i in range(2)))
    done = CliRunner().invoke(app, ["data", "check", f"clients:{root}", "--json"])
    refused, code, spelling = json.loads(done.stdout)["warnings"]
    assert "the class 'nan' is no class" in refused and "number or code ('7')" in code
    assert "'Mug' (a) and 'mug' (b) differ in spelling only, and are learned as" in spelling


def test_codes_are_told_from_words() -> None:
    for code in ("3", "-1", "3.0", "007", "class_3", "Label 12", "n01440764", "!?"):
        assert is_code(code), code
    for word in ("mug", "3 mugs", "Große Biene", "猫", "boeing 747", "x-ray"):
        assert not is_code(word), word
    assert not is_missing("nanny") and is_missing(" NULL ")


def test_numbers_warn_and_a_file_or_a_column_names_them(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write(path, "path,label\n1.png,3\n2.png,4.0\n3.png,mug\n")
    (told,) = advice("csv", str(path))
    assert "2 of 3 classes are called by a number or code ('3', '4.0')" in told
    assert "class_names.csv" in told and "a column class_name" in told and "3,coffee mug" in told
    write(tmp_path / "class_names.csv", "3,bowl\n4,plate\n")
    assert csv_table(path).pick("all").classes == ("bowl", "mug", "plate")
    assert advice("csv", str(path)) == []
    (tmp_path / "class_names.csv").unlink()
    write(path, "path,label,class_name\n1.png,3,bowl\n2.png,4,plate\n3.png,3,\n")
    assert csv_table(path).pick("all").labels == (0, 1, 0) and advice("csv", str(path)) == []
    write(path, "path,label,class_name\n1.png,3,bowl\n2.png,3,plate\n")
    with pytest.raises(DataError, match=r"line 3: label '3' has the class_name 'plate' here and"):
        csv_table(path)
    folders = plant(tmp_path / "f", "0/1.png", "1/1.png")
    (told,) = advice("folder", str(folders))
    assert "class_names.csv" in told and "column" not in told


def test_names_come_from_text_files_too(tmp_path: Path) -> None:
    for text in ("3 coffee mug\n4 bowl\n", "3: coffee mug\n\n4: bowl", "3\tcoffee mug\n4,bowl"):
        write(tmp_path / "names.txt", text)
        assert named_classes(tmp_path) == {"3": "coffee mug", "4": "bowl"}
    write(tmp_path / "names.txt", "mug\nbowl\n")
    with pytest.raises(DataError, match="names.txt, line 1: write folder,name"):
        named_classes(tmp_path)
    write(tmp_path / "names.txt", "3 mug\n3 bowl\n")
    with pytest.raises(DataError, match="line 2: '3' is called 'bowl' here and 'mug' above"):
        named_classes(tmp_path)
    write(tmp_path / "classnames.txt", "3 mug\n")
    with pytest.raises(DataError, match=r"names.txt and classnames.txt: keep one"):
        named_classes(tmp_path)
    assert name_of("3.50", {"3": "mug"}) == "3.50"


def test_each_client_may_name_its_classes(tmp_path: Path) -> None:
    root = plant(tmp_path / "c", "north/0/1.png", "north/1/1.png", "south/0/1.png")
    write(root / "class_names.csv", "0,mug\n1,bowl\n")
    write(root / "south" / "names.txt", "0 bowl\n")
    found = clients_table(root).pick("all")
    assert found.classes == ("bowl", "mug") and found.labels == (1, 0, 0)
    assert found.domains == (0, 0, 1) and advice("clients", str(root)) == []


SPELLINGS = """path,label,client
1.png,Mug,north
2.png,mug,south
3.png,coffee_pot,north
4.png,Coffee-Pot,south
"""


def test_two_spellings_of_a_class_are_pointed_out_with_their_sites(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write(path, SPELLINGS)
    told = sorted(advice("csv", str(path), "client"))
    assert "'Coffee-Pot' (south) and 'coffee_pot' (north) differ in spelling only" in told[0]
    assert "'Mug' (north) and 'mug' (south) differ in spelling only" in told[1]
    folders = plant(tmp_path / "f", "north/Mug/1.png", "south/mug/1.png", "south/cup/1.png")
    (one,) = advice("clients", str(folders))
    assert "'Mug' (north) and 'mug' (south)" in one
    write(folders / "class_names.csv", "Mug,mug\n")
    assert advice("clients", str(folders)) == []
    alike = plant(tmp_path / "g", "north/a_b/1.png", "south/a b/1.png", "south/cup/1.png")
    (one,) = advice("clients", str(alike))  # prompts would be the same
    assert "are read as one name, which a run refuses" in one


def test_two_spellings_keep_their_own_test_images(tmp_path: Path) -> None:
    """Neither takes the other's labels on the way through the numbering of the test images."""
    files = [
        f"{s}/{c}/{i}.png" for s in ("train", "test") for c in ("Mug", "mug") for i in range(3)
    ]
    root = plant(tmp_path / "f", *files)
    settings = [f"data.id=folder:{root}", "partition.kind=iid", "partition.clients=1"]
    with pytest.warns(UserWarning, match="differ in spelling only"):
        split = make_split(load(None, settings))
    assert split.classes == ("Mug", "mug") and split.test.labels.tolist() == [0] * 3 + [1] * 3


def test_a_site_of_a_federation_is_told_too(tmp_path: Path) -> None:
    root = plant(tmp_path / "f", *(f"{c}/{i}.png" for c in ("3", "4") for i in range(5)))
    settings = load(None, [f"data.id=folder:{root}"], own=True)
    with pytest.warns(UserWarning, match="number or code"):
        split = client_split(settings, client=1, clients=2, classes=("3", "4", "5"))
    assert split.counts().tolist() == [[0, 0, 0], [4, 4, 0]]


def test_check_show_and_run_say_it(tmp_path: Path) -> None:
    root = plant(tmp_path / "f", *(f"{c}/{i}.png" for c in ("3", "4") for i in range(5)))
    done = CliRunner().invoke(app, ["data", "check", f"folder:{root}"])
    assert done.exit_code == 0 and "called by a number or code ('3', '4')" in done.output
    asked = CliRunner().invoke(app, ["data", "check", f"folder:{root}", "--json"])
    assert "number or code" in json.loads(asked.stdout)["warnings"][0]
    words = ["--set", f"data.id=folder:{root}", "--set", "partition.clients=2"]
    with pytest.warns(UserWarning, match=r"called by a number or code \('3', '4'\)"):
        shown = CliRunner().invoke(app, ["data", "show", *words])
    assert shown.exit_code == 0
    out = ["--out", str(tmp_path / "run"), "--set", "method.name=zeroshot"]
    with pytest.warns(UserWarning, match="'a photo of a 3.' tells it nothing"):
        run = CliRunner().invoke(app, ["run", *out, *words])
    assert run.exit_code == 0, run.output
    flat = plant(tmp_path / "strange", "1.png", "2.png")  # fine as an OOD set
    done = CliRunner().invoke(app, ["data", "check", f"folder:{flat}"])
    assert done.exit_code == 0 and "fine as an OOD set" in done.output
    write(root / "names.txt", "3 mug\n4 bowl\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert CliRunner().invoke(app, ["data", "show", *words]).exit_code == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("LOC_synset_mapping.txt", "n01440764 tench, Tinca tinca\nn02012849 crane\n"),
        ("words.txt", "n01440764\ttench\nn02012849\tcrane\nn03126707\tcrane, lifting crane\n"),
    ],
)
def test_wordnet_ids_are_named_by_imagenets_own_list(name: str, text: str, tmp_path: Path) -> None:
    for folder in ("n01440764", "n02012849"):
        plant(tmp_path / "x", f"train/{folder}/a.png", f"test/{folder}/b.png")
    told = advice("folder", str(tmp_path / "x"), "domain")
    assert len(told) == 1 and "ids of WordNet" in told[0] and "LOC_synset_mapping.txt" in told[0]
    (tmp_path / "x" / name).write_text(text)
    assert read_folder(tmp_path / "x", "train").classes == ("crane", "tench")
    assert not advice("folder", str(tmp_path / "x"), "domain")


def test_two_synsets_of_one_name_stay_two_classes(tmp_path: Path) -> None:
    for folder in ("n02012849", "n03126707"):
        plant(tmp_path / "x", f"{folder}/a.png")
    (tmp_path / "x" / "words.txt").write_text("n02012849 crane\nn03126707 crane, lifting crane\n")
    assert read_folder(tmp_path / "x", "all").classes == ("crane n02012849", "lifting crane")

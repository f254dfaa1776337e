"""A run's names live in its folder, and an evaluation refuses data that is no longer the run's."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from focoop.errors import RunError
from focoop.runs import NAMES, Client, Names, RunFolder
from tests.runs.own_images import COLOURS, SETTINGS, SITES, write_sites
from tests.runs.work import CONFIG, as_earlier, change_manifest, new_manifest
from tests.toy_command import call

SET = [word for setting in SETTINGS for word in ("--set", setting)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project folder with images and a finished run, made from inside it by relative paths."""
    root = tmp_path_factory.mktemp("project")
    write_sites(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOCOOP_CACHE", str(root / "cache"))
        patch.chdir(root)
        result = call("run", *SET, "--out", "runs/mine", "--json")
    assert result.exit_code == 0, result.stderr
    return root


@pytest.fixture
def project(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project at another place, with the features that were made before."""
    monkeypatch.setenv("FOCOOP_CACHE", str(trained / "cache"))
    shutil.copytree(trained, tmp_path / "project", ignore=shutil.ignore_patterns("cache"))
    run = tmp_path / "project" / "runs" / "mine"
    told = json.loads((run / "manifest.json").read_text())["paths_relative_to"]
    change_manifest(run, paths_relative_to={**told, "folder": str(tmp_path / "project")})
    monkeypatch.chdir(tmp_path)
    return tmp_path / "project"


def test_the_names_are_there_without_any_data(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained / "runs" / "mine", tmp_path / "alone")
    monkeypatch.chdir(tmp_path)
    run = RunFolder.open(Path("alone"))
    assert run.class_names == tuple(sorted(COLOURS))
    assert run.client_names == SITES
    assert len(set(run.negative_words)) == 5
    names = run.names
    assert names is not None and names.tested == "test"
    assert names.clients[0] == Client("east", dict.fromkeys(COLOURS, 2), dict.fromkeys(COLOURS, 2))
    assert sum('"name": ' in line for line in names.to_json().splitlines()) == len(SITES)


def test_evaluate_gives_the_same_numbers_from_any_folder(project: Path) -> None:
    line = RunFolder.open(project / "runs" / "mine").metrics()[-1]
    result = call("evaluate", str(project / "runs" / "mine"), "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["clients"], found["client_names"]) == (line["clients"], list(SITES))
    table = call("evaluate", str(project / "runs" / "mine")).stdout
    firsts = [row.split()[0] for row in table.splitlines() if row.strip()]
    assert [first for first in firsts if first in SITES] == list(SITES)


def test_a_moved_project_is_found_from_its_run_folder(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.rename(tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert call("evaluate", str(tmp_path / "moved" / "runs" / "mine")).exit_code == 0


def features(root: Path) -> set[Path]:
    return set((root / "cache" / "features").iterdir())


def rename_class(root: Path, sites: tuple[str, ...] = SITES) -> None:
    for site in sites:
        for split in ("train", "test"):
            (root / "images" / site / split / "cup").rename(
                root / "images" / site / split / "a mug"
            )


def drop_site(root: Path) -> None:
    shutil.rmtree(root / "images" / "north")


def add_image(root: Path) -> None:
    folder = root / "images" / "west" / "test" / "tree"
    shutil.copy(folder / "0.png", folder / "9.png")


def change_pixels(root: Path) -> None:
    folder = root / "images" / "west" / "test"
    shutil.copy(folder / "tree" / "0.png", folder / "cup" / "0.png")


def change_foreign(root: Path) -> None:
    shutil.copy(
        root / "images" / "west" / "test" / "cup" / "0.png",
        root / "foreign" / "test" / "noise" / "0.png",
    )


def change_training(root: Path) -> None:
    (root / "images" / "east" / "train" / "boat" / "0.png").unlink()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (rename_class, ["class 'cup' is gone (client 'east', 'north', 'west')", "'a mug' is new"]),
        (
            lambda root: rename_class(root, ("north",)),
            [
                "class 'a mug' is new (client 'north')",
                "client 'north': 2 -> 0 training images of 'cup'",
            ],
        ),
        (drop_site, ["client 'north' is gone"]),
        (add_image, ["client 'west': 2 -> 3 test images of 'tree'"]),
        (change_pixels, ["data_hashes is not what", "test: then"]),
        (change_foreign, ["data_hashes is not what", "folder:foreign: then"]),
        (change_training, ["client 'east': 2 -> 1 training images of 'boat'", "--test-only"]),
    ],
    ids=["class", "class of one site", "site", "image", "pixels", "OOD set", "training"],
)
def test_evaluate_and_resume_refuse_changed_data_and_say_what_differs(
    project: Path, trained: Path, change: Callable[[Path], None], told: list[str]
) -> None:
    change(project)
    before = features(trained)
    result = call("evaluate", str(project / "runs" / "mine"))
    assert result.exit_code == 6 and result.stdout == "", result.stderr
    said = " ".join(result.stderr.split())
    for words in told:
        assert words in said
    assert ("--test-only" in said) == (change is change_training)
    if "data_hashes" not in told[0]:  # hours of encoding do not come before the refusal
        assert features(trained) == before
    more = [*SET, "--set", "federation.rounds=2", "--out", str(project / "runs" / "mine")]
    resumed = call("run", *more, "--resume")
    assert resumed.exit_code == 6
    assert told[0] in " ".join(resumed.stderr.split())


def test_evaluate_does_without_training_images(project: Path) -> None:
    run = project / "runs" / "mine"
    line = RunFolder.open(run).metrics()[-1]
    change_training(project)
    result = call("evaluate", str(run), "--test-only", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["clients"] == line["clients"]
    for site in SITES:
        shutil.rmtree(project / "images" / site / "train")
    (project / "words.txt").unlink()  # the words that were mined are in the folder
    with pytest.warns(UserWarning, match="training images of .* cannot be opened: the test images"):
        result = call("evaluate", str(run), "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["clients"] == line["clients"]
    change_pixels(project)
    refused = call("evaluate", str(run))
    assert refused.exit_code == 6 and "test: then" in refused.stderr
    (project / "images" / "west" / "test" / "cup").rename(project / "images" / "west/test/mug")
    refused = call("evaluate", str(run))
    assert refused.exit_code == 3 and "a class 'mug' that the run did not have" in refused.stderr


def test_a_client_that_never_trained_is_evaluated_by_the_counts_that_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Path
) -> None:
    write_sites(tmp_path)
    monkeypatch.setenv("FOCOOP_CACHE", str(trained / "cache"))
    monkeypatch.chdir(tmp_path)
    some = [*SET, "--set", "federation.participation=0.34", "--out", "run"]
    assert call("run", *some).exit_code == 0
    run = RunFolder.open(Path("run"))
    assert len(run.private.clients()) == 1
    result = call("evaluate", "run", "--test-only", "--json")
    assert json.loads(result.stdout)["clients"] == run.metrics()[-1]["clients"]


def test_a_run_resumes_from_another_folder(project: Path) -> None:
    out = ["--out", str(project / "runs" / "mine"), "--resume", "--set", "federation.rounds=2"]
    result = call("run", *SET, *out)
    assert result.exit_code == 0, result.stderr
    assert RunFolder.open(project / "runs" / "mine").last_round() == 2


def test_a_folder_of_an_earlier_focoop_opens_and_says_what_is_not_checked(project: Path) -> None:
    run = project / "runs" / "mine"
    as_earlier(run, without=(NAMES,))
    with (
        pytest.warns(UserWarning, match="has no names.json .*names were not checked, its data_ha"),
        pytest.warns(UserWarning, match="has no checksums .*has checksums from now on"),
    ):
        assert call("evaluate", str(run)).exit_code == 0
    opened = RunFolder.open(run)
    assert opened.names is None and opened.metrics()
    with pytest.raises(RunError, match=r"has no names.json: an earlier focoop made it"):
        assert opened.class_names
    change_pixels(project)
    with pytest.warns(UserWarning, match="not checked"):
        assert call("evaluate", str(run)).exit_code == 6


def test_names_of_clients_without_any_are_their_numbers(tmp_path: Path) -> None:
    names = Names(("cat",), (Client("0"),))
    with RunFolder.create(tmp_path / "run", CONFIG, new_manifest()) as folder:
        folder.keep_names(names)
        folder.keep_names(names)
        with pytest.raises(RunError, match=r"class 'cat' is gone\n  class 'dog' is new"):
            folder.keep_names(replace(names, classes=("dog",)))
    (tmp_path / "run" / NAMES).write_text("{}")
    with pytest.raises(RunError, match=r"names.json is damaged"):
        RunFolder.open(tmp_path / "run").names  # noqa: B018 - reading is what fails


WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
COUNTS = st.dictionaries(WORDS, st.integers(1, 99), max_size=3)


@given(
    st.lists(WORDS, unique=True, max_size=5),
    st.lists(st.builds(Client, WORDS, COUNTS, COUNTS), max_size=4, unique_by=lambda one: one.name),
    st.lists(WORDS, max_size=4),
)
def test_names_are_read_as_they_were_written(
    classes: list[str], clients: list[Client], words: list[str]
) -> None:
    names = Names(tuple(classes), tuple(clients), tuple(words), "test")
    assert Names.from_json(names.to_json()) == names
    assert names.differences(names) == []


def test_what_differs_is_said_in_words() -> None:
    names = Names(("a", "b"), (Client("x", {"a": 1}), Client("y", {"b": 2})), ("fog", "mud"))
    assert names.differences(replace(names, classes=("b", "a"))) == [
        "the classes are in another order"
    ]
    assert names.differences(replace(names, clients=names.clients[::-1])) == [
        "the clients are in another order"
    ]
    assert names.differences(replace(names, words=("fog", "ice"))) == [
        "1 of the 2 mined words are others, first 'mud' -> 'ice'"
    ]
    fewer = replace(names, clients=(Client("x", {"a": 3}), Client("y", {"b": 2})))
    assert names.differences(fewer) == ["client 'x': 1 -> 3 training images of 'a'"]
    assert names.differences(fewer, of=("test",)) == []
    server = Names(("a", "b"), (Client("0"), Client("1")), names.words)  # of sites: sees no images
    assert server.differences(names) == names.differences(server) == []
    assert server.differences(replace(server, clients=server.clients[:1])) == ["2 -> 1 clients"]

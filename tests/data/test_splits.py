"""Which word means which split, by one rule for tables, folders and every kind of partition."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from focoop.config.loading import load
from focoop.data import folder_splits, read_folder
from focoop.data.sources import splits_of
from focoop.data.splits import PLAIN_WORDS, SHORT_WORDS, column_splits, split_of, whole
from focoop.data.tables import csv_table
from focoop.errors import DataError
from focoop.experiments.naming import describe_partition
from tests.data.trees import plant, write

WORDS = {
    word: split for table in (PLAIN_WORDS, SHORT_WORDS) for split in table for word in table[split]
}


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))


@given(st.sampled_from(sorted(WORDS)), st.sampled_from(["", "_set", "-set", " Set", "data"]))
def test_words_are_understood_in_any_case_and_with_a_tail(word: str, tail: str) -> None:
    for written in (word, word.upper(), word.title(), f" {word} "):
        assert split_of(written.strip() + tail) == WORDS[word]


@pytest.mark.parametrize(
    "word", ["", "0", "1", "a", "set", "data", "fold1", "exam", "true", "train2", "unlabeled", "t"]
)
def test_other_words_mean_nothing(word: str) -> None:
    assert split_of(word) is None


def table(tmp_path: Path, train: str, test: str) -> Path:
    """24 images to train on and 24 to test on, of two classes at two clients and two domains."""
    lines = ["path,label,split,client,domain"]
    for number in range(48):
        file = f"i/{number:02d}.png"
        plant(tmp_path, file)
        split = train if number < 24 else test
        lines.append(
            f"{file},{('cat', 'dog')[number % 2]},{split},c{number % 4 // 2},d{number % 3}"
        )
    write(tmp_path / "t.csv", "\n".join(lines) + "\n")
    return tmp_path / "t.csv"


KINDS = ("given", "domain", "iid", "dirichlet", "pathological")


def setting(path: Path, kind: str) -> list[str]:
    clients = "0" if kind in ("given", "domain") else "2"
    return [f"data.id=csv:{path}", f"partition.kind={kind}", f"partition.clients={clients}"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", [("training", "testing"), ("Tr", "TE"), ("train", "dev")])
def test_every_kind_of_partition_keeps_the_users_split(
    kind: str, words: tuple[str, str], tmp_path: Path
) -> None:
    found = describe_partition(load(None, setting(table(tmp_path, *words), kind)))
    assert (found.train.sum(), found.test.sum()) == (24, 24)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_partition_refuses_words_that_could_mean_either(
    kind: str, tmp_path: Path
) -> None:
    path = table(tmp_path, "0", "1")
    with pytest.raises(DataError) as caught:
        describe_partition(load(None, setting(path, kind)))
    told = str(caught.value)
    assert "line 2: the column split holds '0' (24 rows), '1' (24 rows)" in told
    assert "write train, test or val" in told and "does not guess" in told


def test_splits_that_are_missing_or_alone_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 5: split is empty here and given elsewhere"):
        column_splits("t.csv", {2: "train", 5: ""})
    assert column_splits("t.csv", {2: "", 5: ""}) == {2: "", 5: ""}
    assert not whole("x", ()) and whole("x", ("train", "val"))
    with pytest.raises(DataError, match="no train: add training images"):
        whole("x", ("test", "val"))
    with pytest.raises(DataError, match="no test or val"):
        whole("x", ("train",))
    assert whole("x", ("train",), need_test=False)
    path = tmp_path / "t.csv"
    write(path, "path,label,split\n1.png,cat,NaN\n2.png,dog,nan\n")
    assert csv_table(path).splits == ()
    for kind in ("given", "iid"):  # training images alone are not tested on
        path = table(tmp_path, "train", "train")
        with pytest.raises(DataError, match="no test or val"):
            describe_partition(load(None, setting(path, kind)))


def test_a_left_out_domain_is_tested_on_its_own_test_images(tmp_path: Path) -> None:
    path = table(tmp_path, "training", "testing")
    chosen = load(None, [*setting(path, "domain"), "partition.leave_out=d1"])
    found = describe_partition(chosen)
    # 24 images of three domains in each split: two train, and the third's test images are tests.
    assert found.train.sum(1).tolist() == [8, 8] and found.test.sum(1).tolist() == [8, 8]


def test_folders_of_other_words_are_splits(tmp_path: Path) -> None:
    root = plant(tmp_path / "a", "Training/cat/1.png", "Testing/cat/2.png", "Testing/cat/3.png")
    assert folder_splits(root) == ("test", "train") == splits_of("folder", str(root))
    assert read_folder(root, "train").files == ("Training/cat/1.png",)
    assert len(read_folder(root, "test")) == 2 and read_folder(root, "test").domains == ()
    short = plant(tmp_path / "b", "tr/cat/1.png", "te/cat/2.png")
    assert folder_splits(short) == ("test", "train")
    clients = plant(tmp_path / "c", "north/TRAIN/cat/1.png", "north/Valid/cat/2.png")
    assert splits_of("clients", str(clients)) == ("test", "train")  # tested on its val


def test_folders_that_are_no_splits_beside_one_are_refused(tmp_path: Path) -> None:
    root = plant(tmp_path / "a", "train/cat/1.png", "exam/cat/1.png", "test/cat/1.png")
    with pytest.raises(
        DataError, match="'test' beside exam, which is no split|'train' beside exam"
    ):
        read_folder(root, "train")
    domains = plant(tmp_path / "b", "tr/cat/1.png", "de/cat/1.png")  # languages, say
    assert read_folder(domains, "all").domain_names == ("de", "tr")


def test_a_column_that_looks_like_a_split_is_pointed_out(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write(path, "path,label,fold,patient\n1.png,cat,1,4\n2.png,dog,2,5\n")
    (told,) = csv_table(path).warnings
    assert "the column 'fold' is not read. Call it split" in told
    write(path, "path,label,subset,patient\n1.png,cat,train,4\n2.png,dog,test,5\n")
    with pytest.raises(DataError, match="'subset' says test, train and is not read: call it split"):
        csv_table(path)
    write(path, "path;label;Split\n1.png;cat;train\n2.png;dog;test\n")  # as spreadsheets write it
    assert csv_table(path).splits == ("test", "train") and not csv_table(path).warnings

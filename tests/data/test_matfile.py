"""MATLAB files against SciPy, which writes them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from hypothesis import given, settings
from hypothesis import strategies as st

from focoop.data.datasets._matfile import read_mat
from focoop.errors import DataError

KINDS = ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "float32", "float64"]


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    compressed=st.booleans(),
    name=st.from_regex(r"[a-z]{1,9}", fullmatch=True),
)
def test_numbers_come_back(
    kind: str, shape: list[int], compressed: bool, name: str, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("mat") / "x.mat"
    values = (np.arange(np.prod(shape)) % 100).astype(kind).reshape(shape)
    scipy.io.savemat(path, {name: values, "after": np.ones((1, 1))}, do_compression=compressed)
    found = read_mat(path)
    assert sorted(found) == sorted({name, "after"})
    if name != "after":
        assert np.array_equal(found[name], values) and found[name].shape == values.shape


@pytest.mark.parametrize("compressed", [False, True])
def test_text_cells_and_structs_come_back(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "x.mat"
    cells = np.array(["Ram C/V Cargo Van", "Citroën", "x"], dtype=object).reshape(1, -1)
    rows = np.array([(7, "0001.jpg"), (196, "b.jpg")], dtype=[("class", object), ("fname", object)])
    content = {"names": cells, "rows": rows.reshape(1, -1), "text": "plain"}
    scipy.io.savemat(path, content, do_compression=compressed)
    found = read_mat(path)
    assert found["names"] == ["Ram C/V Cargo Van", "Citroën", "x"] and found["text"] == "plain"
    assert [int(row["class"].ravel()[0]) for row in found["rows"]] == [7, 196]
    assert [row["fname"] for row in found["rows"]] == ["0001.jpg", "b.jpg"]


def test_other_and_cut_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.mat"
    scipy.io.savemat(path, {"X": np.zeros((50, 50))}, do_compression=True)
    raw = path.read_bytes()
    for content in (b"", b"MATLAB 7.3", raw[: len(raw) // 2], raw[:-8]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"x\.mat"):
            read_mat(path)
    with pytest.raises(DataError, match=r"absent\.mat"):
        read_mat(tmp_path / "absent.mat")

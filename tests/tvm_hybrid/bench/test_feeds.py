"""Feeds from files and random feeds."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from microkernels.base.errors import FeedError
from tvm_hybrid.bench.feeds import complete_feeds, load_feeds, random_array, save_arrays
from tvm_hybrid.runtime.tensors import TensorInfo


def test_files_and_archives(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    save_arrays(tmp_path / "all.npz", {"x": np.zeros(2), "file": np.ones(2), "a/b": np.ones(1)})
    feeds = load_feeds([f"x={tmp_path / 'x.npy'}"], tmp_path / "all.npz")
    assert sorted(feeds) == ["a/b", "file", "x"]
    assert feeds["x"].tolist() == [0, 1, 2]
    assert feeds["file"].tolist() == [1, 1]


def test_bfloat16_survives_files(tmp_path: Path) -> None:
    array = np.array([1.5, -2.0, 3e38], ml_dtypes.bfloat16)
    np.save(tmp_path / "x.npy", array)
    save_arrays(tmp_path / "all.npz", {"y": array})
    for loaded in load_feeds([f"x={tmp_path / 'x.npy'}"], tmp_path / "all.npz").values():
        assert loaded.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(loaded, array)


@pytest.mark.parametrize("item", ["x", "=x.npy", "x=", "x=missing.npy", "x=text.npy", "x=all.npz"])
def test_bad_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, item: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.npy").write_text("not an array")
    save_arrays(Path("all.npz"), {"x": np.zeros(2)})
    with pytest.raises(FeedError):
        load_feeds([item])


def test_pickles_and_wrong_archives_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    np.save(tmp_path / "one.npy", np.zeros(2))
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(FeedError, match=r"objects\.npy"):
        load_feeds([f"x={tmp_path / 'objects.npy'}"])
    for name in ("one.npy", "cut.npz"):
        with pytest.raises(FeedError, match=name.replace(".", r"\.")):
            load_feeds([], tmp_path / name)


def test_missing_inputs_are_drawn_and_named() -> None:
    infos = [TensorInfo("x", (2, 3), "float32"), TensorInfo("ids", (4,), "int64")]
    given = np.zeros((2, 3), np.float32)
    feeds, drawn = complete_feeds(infos, {"x": given})
    assert feeds["x"] is given and drawn == ["ids"]
    assert feeds["ids"].dtype == np.int64 and set(feeds["ids"]) <= {0, 1}
    again, _ = complete_feeds(infos, {"x": given})
    assert np.array_equal(feeds["ids"], again["ids"])


def test_an_unknown_input_is_refused() -> None:
    with pytest.raises(FeedError, match="no input 'y'; it has x"):
        complete_feeds([TensorInfo("x", (1,), "float32")], {"y": np.zeros(1)})


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", "float32", "float64", "int8", "uint8", "bool"]
)
def test_random_arrays_have_their_type(dtype: str) -> None:
    array = random_array((3, 5), dtype, np.random.default_rng(0))
    assert array.shape == (3, 5) and array.dtype == dtype

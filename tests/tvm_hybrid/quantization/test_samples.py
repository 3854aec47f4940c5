"""Calibration samples: which files are read, and which do not fit."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from microkernels.base.errors import FeedError
from tvm_hybrid.quantization.samples import ModelInput, inputs_of, load_samples, require_one_shape

from ..onnx_models import two_layers

X = np.arange(96, dtype=np.float32).reshape(3, 4, 8)
F32 = np.dtype(np.float32)
ONE = [ModelInput("x", F32, (4, 8))]
TWO = [ModelInput("x", F32, ("n", 8)), ModelInput("k", np.dtype(np.int64), (2,))]
K = np.array([[1, 2], [3, 4], [5, 6]])


def loaded(data: Any, inputs: list[ModelInput], limit: int = 9) -> list[dict[str, Any]]:
    return [
        {name: array.tolist() for name, array in each.items()}
        for each in load_samples(data, inputs, limit)
    ]


ALL = [{"x": each.tolist()} for each in X]


def test_inputs_of_a_model() -> None:
    assert inputs_of(two_layers("rows")) == [ModelInput("x", F32, ("rows", 8))]


def test_one_archive_has_samples_along_a_first_axis(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", x=X)
    assert loaded(tmp_path / "all.npz", ONE) == ALL
    assert loaded(str(tmp_path / "all.npz"), ONE, limit=2) == ALL[:2]
    assert loaded({"x": X.reshape(12, 8)}, ONE) == ALL  # three times the model's four rows
    assert loaded({"x": X[0]}, ONE) == ALL[:1]


def test_a_folder_has_a_sample_in_each_file(tmp_path: Path) -> None:
    for number, each in enumerate(X):
        np.save(tmp_path / f"{number}.npy", each)
    (tmp_path / "labels.txt").write_text("not an array")
    assert loaded(tmp_path, ONE) == ALL


def test_a_folder_of_archives_has_several_inputs(tmp_path: Path) -> None:
    for number in range(3):
        np.savez(tmp_path / f"{number}.npz", x=X[number], k=K[number])
    wanted = [{**x, "k": k.tolist()} for x, k in zip(ALL, K, strict=True)]
    assert loaded(tmp_path, TWO) == wanted
    assert loaded([{"x": x, "k": k} for x, k in zip(X, K, strict=True)], TWO) == wanted


def test_test_data_of_onnx(tmp_path: Path) -> None:
    """Tensors without names are assigned to inputs by their order."""
    for number in range(2):
        folder = tmp_path / f"test_data_set_{number}"
        folder.mkdir()
        for place, array in enumerate((X[number], K[number])):
            tensor = numpy_helper.from_array(array)
            onnx.save_tensor(tensor, folder / f"input_{place}.pb")
        onnx.save_tensor(numpy_helper.from_array(X[0]), folder / "output_0.pb")
    assert loaded(tmp_path, TWO) == [{**ALL[n], "k": K[n].tolist()} for n in range(2)]


@pytest.mark.parametrize(
    ("data", "inputs", "message"),
    [
        ({"z": X}, ONE, r"data has no x.*an array for each input.*: x"),
        ({"x": X, "z": X}, ONE, "data has z, but"),
        ({"x": X.astype(np.float64)}, ONE, r"x is float64, .*float32\[4, 8\].*astype"),
        ({"x": X[:, :3]}, ONE, r"x is float32\[3, 3, 8\], the model takes float32\[4, 8\]"),
        ({"x": X, "k": K[:2]}, TWO, "different numbers of samples: 3 of x, 2 of k"),
        ({"x": np.zeros((0, 4, 8), np.float32)}, ONE, "no sample in the data given"),
        ([], ONE, "no sample in the data given; it needs .npz"),
        (3, ONE, "not int"),
    ],
)
def test_what_does_not_fit_is_refused(data: Any, inputs: list[ModelInput], message: str) -> None:
    with pytest.raises(FeedError, match=message):
        load_samples(data, inputs, 9)


def test_histograms_need_samples_of_one_shape() -> None:
    samples = [{"x": X[0]}, {"x": X[0, :2]}]
    require_one_shape(samples[:1] * 2, "entropy")
    with pytest.raises(FeedError, match=r"'entropy' needs .* x is \(4, 8\) .* \(2, 8\) in"):
        require_one_shape(samples, "entropy")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(FeedError, match=f"no sample in {tmp_path}"):
        load_samples(tmp_path, ONE, 9)
    with pytest.raises(FeedError, match=r"missing\.npz cannot be read"):
        load_samples(tmp_path / "missing.npz", ONE, 9)
    np.save(tmp_path / "a.npy", X[0])
    with pytest.raises(FeedError, match=r"a.npy has one array without a name.*x, k"):
        load_samples(tmp_path, TWO, 9)
    (tmp_path / "input_0.pb").write_bytes(b"no tensor")
    (tmp_path / "a.npy").unlink()
    with pytest.raises(FeedError, match=r"input_0\.pb is no tensor"):
        load_samples(tmp_path, ONE, 9)

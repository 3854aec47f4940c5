"""The digest of a model's file: computed once, and again if the file may have changed."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tests.tvm_hybrid.onnx_models import saved
from tvm_hybrid.cache import program_key
from tvm_hybrid.cache.program_key import model_bytes
from tvm_hybrid.frontend.onnx.reader import model_bytes as model_bytes_module
from tvm_hybrid.frontend.onnx.reader.model_bytes import ModelBytes, are_older, file_state

LATER = 10_000_000_000  # nanoseconds


class Reader:
    """Counts how often a model is read."""

    def __init__(self) -> None:
        self.count = 0
        self.after: Callable[[], None] = lambda: None

    def of(self, model: Any) -> ModelBytes:
        self.count += 1
        found = ModelBytes.of(model)
        self.after()
        return found

    def __call__(self, *arguments: Any) -> ModelBytes:
        return ModelBytes(*arguments)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """A reader in a process that starts some seconds after the files were written."""
    found = Reader()
    monkeypatch.setenv("TVM_HYBRID_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(program_key, "ModelBytes", found)
    now = time.time_ns
    monkeypatch.setattr(program_key.time, "time_ns", lambda: now() + LATER)
    return found


def test_a_file_that_stays_the_same_is_read_once(reader: Reader, tmp_path: Path) -> None:
    path = saved(tmp_path)
    first = model_bytes(path)
    assert model_bytes(str(path)) == first == ModelBytes.of(path)
    assert reader.count == 1
    data = path.read_bytes()
    assert model_bytes(data).digest == first.digest and reader.count == 2


@pytest.mark.parametrize("change", ["bytes", "bytes with the old date", "date", "inode"])
def test_a_file_that_has_changed_is_read_again(change: str, reader: Reader, tmp_path: Path) -> None:
    path = saved(tmp_path)
    first, state = model_bytes(path), path.stat()
    data = bytearray(path.read_bytes())
    time.sleep(0.02)  # longer than a tick of the file system's clock
    if change == "inode":
        path.rename(tmp_path / "old.onnx")
    if change.startswith("bytes"):
        data[len(data) // 2] ^= 1
    if change != "date":
        path.write_bytes(data)
    else:
        os.utime(path)
    if change in ("bytes with the old date", "inode"):
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    again = model_bytes(path)
    assert reader.count == 2
    assert (again.digest == first.digest) == (not change.startswith("bytes"))
    assert model_bytes(path) == again and reader.count == 2


def test_what_was_just_written_is_not_trusted(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path)
    written = file_state(path)[3]
    assert are_older([file_state(path)], written + LATER)
    assert not are_older([file_state(path)], written + 1_999_999_999)
    monkeypatch.setattr(program_key.time, "time_ns", lambda: written + 1)
    for count in (1, 2):
        model_bytes(path)
        assert reader.count == count


def test_a_file_that_changes_while_it_is_read_is_read_again(reader: Reader, tmp_path: Path) -> None:
    path = saved(tmp_path)
    reader.after = lambda: os.utime(path, (1000, 1000))
    model_bytes(path)
    reader.after = lambda: None
    model_bytes(path)
    assert reader.count == 2


def test_a_damaged_note_is_written_anew(reader: Reader, tmp_path: Path) -> None:
    path = saved(tmp_path)
    first = model_bytes(path)
    (note,) = (tmp_path / "cache" / "programs").glob("model-*.json")
    note.write_text(note.read_text().replace(first.digest, first.digest[::-1]))
    assert model_bytes(path) == first and reader.count == 2
    assert model_bytes(path) == first and reader.count == 2


def test_a_folder_that_cannot_be_written_is_no_error(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TVM_HYBRID_CACHE_DIR", str(tmp_path / "file"))
    assert model_bytes(path) == ModelBytes.of(path)


@pytest.mark.parametrize(
    ("place", "found"),
    [("nowhere", False), ("large data", False), ("small data", True), ("the end", True)],
)
def test_large_data_are_not_searched(place: str, found: bool, tmp_path: Path) -> None:
    """A model is parsed for names of external files only if it may contain such a name."""
    weights = {"large": np.zeros(1 << 18, np.uint8), "small": np.zeros(64, np.uint8)}
    word = np.frombuffer(b"location", np.uint8)
    if place.endswith(" data"):
        weights[place.removesuffix(" data")][20:28] = word
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph([], "graph", [], [], initializers)
    model = helper.make_model(graph, doc_string="location" if place == "the end" else "")
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert model_bytes_module._mentions(path, b"location") == found
    assert ModelBytes.of(path).digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_what_is_no_model_is_searched_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for start in (0, (1 << 18) - 4, (1 << 19) - 8):  # within one chunk of the file, and across two
        data = bytearray(b"\xff" * (1 << 19))
        data[start : start + 8] = b"location"
        path.write_bytes(data)
        assert model_bytes_module._mentions(path, b"location")
    path.write_bytes(b"\xff" * (1 << 19))
    assert not model_bytes_module._mentions(path, b"location")

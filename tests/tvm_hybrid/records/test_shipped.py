"""The package's own records are packaged, valid for this version, and confirmed."""

from __future__ import annotations

import configparser
import importlib
from pathlib import Path

import tvm_hybrid
from tvm_hybrid.records import record_lookup
from tvm_hybrid.records.record_rewrite import problems
from tvm_hybrid.records.record_store import RecordStore
from tvm_hybrid.tuning.recordings.simulate import SHIPPED as RECORDINGS


def test_they_are_package_data() -> None:
    root = Path(tvm_hybrid.__file__).parent.parent
    settings = configparser.ConfigParser()
    settings.read(root / "setup.cfg")
    data = settings["options.package_data"]
    for folder, package in ((record_lookup.FOLDER, "records"), (RECORDINGS, "tuning.recordings")):
        room = root.joinpath("tvm_hybrid", *package.split("."))
        pattern = data[f"tvm_hybrid.{package}"]
        files = list(folder.rglob("*.jsonl*"))
        assert files
        assert all(path.relative_to(room).match(pattern) for path in files)


def test_this_version_would_use_them() -> None:
    importlib.import_module("relay_passes.pipeline")  # registers all templates
    for path in record_lookup.FOLDER.glob("*"):
        assert path.suffix == ".jsonl"
        store = RecordStore(path)
        assert problems(store) == []
        for record, place in store:
            assert (record.status, record.confirmed) == ("ok", True), place
            assert record.machine == path.stem, place
            assert record.relative is not None and record.relative <= 1.0, place

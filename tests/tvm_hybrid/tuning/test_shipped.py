"""The package's own records: in the package, of use to this version, and confirmed."""

from __future__ import annotations

import configparser
import fnmatch
import importlib
from pathlib import Path

import tvm_hybrid
from tvm_hybrid.tuning import shipped
from tvm_hybrid.tuning.check_records import problems
from tvm_hybrid.tuning.records import RecordStore
from tvm_hybrid.tuning.simulate import SHIPPED as RECORDINGS


def test_they_are_package_data() -> None:
    root = Path(tvm_hybrid.__file__).parent.parent
    settings = configparser.ConfigParser()
    settings.read(root / "setup.cfg")
    patterns = settings["options.package_data"]["tvm_hybrid.tuning"].split()
    folder = root / "tvm_hybrid" / "tuning"
    for path in (shipped.FOLDER / "znver4.jsonl", RECORDINGS / "matmul.jsonl.xz"):
        name = path.relative_to(folder).as_posix()
        assert any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def test_this_version_would_use_them() -> None:
    importlib.import_module("relay_passes.pipeline")  # registers all templates
    for path in shipped.FOLDER.glob("*"):
        assert path.suffix == ".jsonl"
        store = RecordStore(path)
        assert problems(store) == []
        for record, place in store:
            assert (record.status, record.confirmed) == ("ok", True), place
            assert record.machine == path.stem, place
            assert record.relative is not None and record.relative <= 1.0, place

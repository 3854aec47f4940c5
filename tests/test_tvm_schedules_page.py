"""The snippets of docs/tvm_schedules.md run in order."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.s_tir import meta_schedule as ms

from tests.tvm_hybrid.small_models import ROOT
from tests.tvm_hybrid.tvm_routes.metaschedule.regions import record_of
from tests.tvm_hybrid.tvm_routes.metaschedule.test_import import stored
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tvm_hybrid.tvm_routes.metaschedule import export_records

PAGE = ROOT / "docs" / "tvm_schedules.md"


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "tvm.s_tir.tensor_intrin"  # importing it takes 13 s, and nothing here needs it
    monkeypatch.setitem(sys.modules, name, sys.modules.get(name, types.ModuleType(name)))
    names: dict[str, Any] = {}
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(snippets) == 6
    for snippet in snippets:
        exec(compile(snippet, str(PAGE), "exec"), names)

    # Definitions that the page does not run: a tuner's space, and applying a database.
    asked: dict[str, Any] = {}
    monkeypatch.setattr(ms.relax_integration, "tune_relax", lambda *args, **kw: asked.update(kw))
    names["tune"](str(tmp_path))
    assert len(asked["space"].sch_rules) > 1
    assert names["name"].startswith("tvm_hybrid.")
    region = Region(
        op="matmul",
        inputs=(Tensor((64, 128), "float32"), Tensor((128, 96), "float32", True)),
        output=Tensor((64, 96), "float32"),
        epilogue=(EpilogueOp("relu", (0,)),),
    )
    export_records(stored(tmp_path / "r.jsonl", record_of(region)), tmp_path / "database")
    applied = names["apply"](str(tmp_path / "database"))
    assert '"body"' in applied.script()
    lib = names["tvm"].compile(applied, names["target"])
    x = np.ones((64, 128), np.float32)
    machine = relax.VirtualMachine(lib, names["tvm"].cpu())
    result = machine["main"](names["tvm"].runtime.tensor(x)).numpy()
    wanted = np.maximum(x.astype(np.float64) @ names["weight"], 0)
    bound = 2 * 128 * np.finfo(np.float32).eps * (x @ np.abs(names["weight"]))
    assert (np.abs(result - wanted) <= bound).all()

"""Compiling with records: equal records make equal programs, and the manifest names them."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import IRModule, relax

import tvm_hybrid
from relay_passes.lower_module import collect_regions
from relay_passes.pipeline_options import PipelineOptions
from tir_schedules.core.template import template_for
from tvm_hybrid.records import record_lookup
from tvm_hybrid.records.record import Record, make_record
from tvm_hybrid.records.record_file import RecordFile

pytestmark = pytest.mark.usefixtures("factor_of_two")

OPTIONS: dict[str, Any] = {"num_threads": 1, "fusion": "fine"}


def layer(m: int = 24) -> IRModule:
    """A product with its bias."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((m, 40), "float32"))
    weight = np.random.default_rng(0).standard_normal((40, 96)).astype("float32")
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, relax.const(weight)))
            bias = relax.const(np.ones(96, "float32"))
            result = builder.emit_output(relax.op.add(product, bias))
        builder.emit_func_output(result)
    return builder.get()


def tuned(path: Path, m: int = 24) -> Record:
    """Writes a record of the layer with a configuration that differs from the formula's."""
    options = PipelineOptions(tvm_hybrid.resolve_target(None), fusion="fine")
    (region,) = collect_regions(layer(m), options)
    template = template_for(region.op)
    *_, config = template.space(region, options.machine)
    assert config != template.default_config(region, options.machine)
    record = make_record(
        region, template, options.machine, config, "ok", [1.0], baseline_us=2.0, confirmed=True
    )
    RecordFile(path).append(record)
    return record


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of this package's records for this CPU, which does not exist yet."""
    monkeypatch.setattr(record_lookup, "FOLDER", tmp_path / "shipped")
    monkeypatch.delenv("TVM_HYBRID_RECORDS", raising=False)
    options = PipelineOptions(tvm_hybrid.resolve_target(None))
    return tmp_path / "shipped" / f"{options.machine.name}.jsonl"


def test_equal_records_make_equal_programs(tmp_path: Path, ours: Path) -> None:
    plain = tvm_hybrid.compile(layer(), **OPTIONS)
    assert plain.manifest.records == ()
    record = tuned(tmp_path / "r.jsonl")
    RecordFile(tmp_path / "elsewhere" / "other.jsonl").append(record)
    digests = []
    for name in ("r.jsonl", "r.jsonl", "elsewhere/other.jsonl"):
        path = tmp_path / name
        executable = tvm_hybrid.compile(layer(), **OPTIONS, records=path)
        (use,) = executable.manifest.records
        assert (use.file, use.line, use.how, use.shipped) == (str(path), 1, "exact", False)
        assert use.workload == use.measured == record.workload
        assert use.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert executable.explain().taken[0].source == f"record {path}:1"
        assert executable.explain().taken[0].config == record.config
        executable.export(tmp_path / "model.so")
        loaded = tvm_hybrid.load(tmp_path / "model.so").manifest
        assert loaded.records == executable.manifest.records
        digests.append(loaded.model_sha256)
    assert len(set(digests)) == 1
    plain.export(tmp_path / "plain.so")
    assert tvm_hybrid.load(tmp_path / "plain.so").manifest.model_sha256 not in digests


def test_borrowed_and_shipped_records_are_named(
    tmp_path: Path, ours: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = tuned(ours, 32)
    with caplog.at_level(logging.WARNING, "tvm_hybrid"):
        executable = tvm_hybrid.compile(layer(), **OPTIONS)
    assert not caplog.messages
    (use,) = executable.manifest.records
    assert (use.file, use.line, use.how, use.shipped) == (ours.name, 1, "borrowed", True)
    assert use.measured == record.workload != use.workload
    (decision,) = executable.explain().taken
    assert decision.config["kernel"] == record.config["kernel"]
    assert decision.source.startswith(f"borrowed from shipped record {ours.name}:1, ")
    x = np.random.default_rng(1).standard_normal((24, 40)).astype("float32")
    nothing: list[str] = []
    for records in (nothing, None):
        executable = tvm_hybrid.compile(layer(), **OPTIONS, records=records)
        assert bool(executable.manifest.records) is (records is None)
        (result,) = executable.run(x)
        weight = np.random.default_rng(0).standard_normal((40, 96)).astype("float32")
        # A sum of K products in any order is within (K + 1) u sum |products| of the exact one, u
        # being 2^-24 (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
        bound = 42 * 2.0**-24 * (np.abs(x) @ np.abs(weight) + 1)
        assert (np.abs(result.numpy() - (x.astype("float64") @ weight + 1)) <= bound).all()


def test_partitioning_applies_records_too(
    tmp_path: Path, ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    tuned(ours)
    mod = tvm_hybrid.partition_for_tvm_hybrid(layer(), fusion="fine")
    assert f"shipped record {ours.name}:1" in mod.script()
    monkeypatch.setenv("TVM_HYBRID_RECORDS", "none")
    assert "shipped" not in tvm_hybrid.partition_for_tvm_hybrid(layer(), fusion="fine").script()

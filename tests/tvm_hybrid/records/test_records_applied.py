"""A record changes the built code, and `explain` names the source of its numbers."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import IRModule, relax
from tvm_ffi import structural_equal

import tvm_hybrid
from microkernels import isa
from relay_passes.lower_module import CompiledModule, collect_regions, compile_module
from relay_passes.pipeline_options import PipelineOptions
from tir_schedules.core.config import Config
from tir_schedules.core.template import template_for
from tvm_hybrid.records.record import make_record
from tvm_hybrid.records.record_lookup import RecordLookup
from tvm_hybrid.records.record_store import RecordStore, latest

pytestmark = pytest.mark.turns

SIZES = (40, 96, 64, 8)
BATCH = 24


def parameters(sizes: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    """A weight and a bias for each layer."""
    generator = np.random.default_rng(7)
    return [
        (
            (generator.standard_normal((rows, columns)) / np.sqrt(rows)).astype("float32"),
            generator.standard_normal(columns).astype("float32"),
        )
        for rows, columns in itertools.pairwise(sizes)
    ]


def mlp(sizes: tuple[int, ...] = SIZES, batch: int = BATCH) -> IRModule:
    """Matmul, bias and ReLU for each layer, as an importer writes them."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((batch, sizes[0]), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for weight, bias in parameters(sizes):
                y = builder.emit(relax.op.matmul(y, relax.const(weight)))
                y = builder.emit(relax.op.add(y, relax.const(bias)))
                y = builder.emit(relax.op.nn.relu(y))
            result = builder.emit_output(y)
        builder.emit_func_output(result)
    return builder.get()


@pytest.fixture
def options() -> PipelineOptions:
    return PipelineOptions(target=tvm_hybrid.resolve_target(None), fusion="fine")


def by_hand(default: Config) -> dict[str, object]:
    """Block sizes that differ from the formula's."""
    fields = default.to_dict()
    return {**fields, "rows": 2, "vectors": 1, "m_block": 4, "k_block": 7}


@pytest.fixture
def records(tmp_path: Path, options: PipelineOptions) -> Path:
    """A file with a damaged line, followed by one record for each region except the last."""
    path = tmp_path / "by hand.jsonl"
    path.write_text("{not a record\n")
    store = RecordStore(path)
    machine = options.machine
    for region in collect_regions(mlp(), options)[:-1]:
        template = template_for(region.op)
        fields = by_hand(template.default_config(region, machine))
        config = template.config_type.from_dict(fields)
        store.append(make_record(region, template, machine, config, "ok", [1.0]))
    return path


def assembly(compiled: CompiledModule, function: str) -> str:
    """Instructions of one function."""
    (library,) = compiled.executable.mod.imports
    text = library.inspect_source("asm")
    # From the body's label to the function's end; labels are numbered over the whole file.
    body = re.search(rf"^{function}_compute_:$(.*?)^\.Lfunc_end", text, re.M | re.S)
    body = body or re.search(rf"^{function}:$(.*?)^\.Lfunc_end", text, re.M | re.S)
    assert body is not None, f"no {function} in the assembly"
    return re.sub(r"\.L\w+", "L", body.group(1))


def test_the_code_changes_with_the_record_and_only_there(
    options: PipelineOptions, records: Path
) -> None:
    plain = compile_module(mlp(), options)
    again = compile_module(mlp(), options)
    with_lookup = replace(options, lookup=RecordLookup(RecordStore(records)))
    tuned = compile_module(mlp(), with_lookup)
    assert len(plain.decisions) == len(tuned.decisions) == len(SIZES) - 1
    for before, same, after in zip(plain.decisions, again.decisions, tuned.decisions, strict=True):
        name = before.function
        assert name == same.function == after.function
        assert structural_equal(plain.mod[name], again.mod[name])
        assert assembly(plain, name) == assembly(again, name)
        recorded = after.source != "default"
        assert structural_equal(plain.mod[name], tuned.mod[name]) is not recorded
        assert (assembly(plain, name) == assembly(tuned, name)) is not recorded
    assert sum(decision.source == "default" for decision in tuned.decisions) == 1


def test_explain_says_where_each_configuration_comes_from(records: Path) -> None:
    plain = tvm_hybrid.compile(mlp(), fusion="fine", num_threads=1)
    tuned = tvm_hybrid.compile(mlp(), fusion="fine", num_threads=1, records=records)
    assert {decision.source for decision in plain.explain()} == {"default"}
    lines = {
        located.record.workload: (located.place, located.record.config)
        for located in RecordStore(records)
    }
    sources = []
    for before, after in zip(plain.explain(), tuned.explain(), strict=True):
        if after.workload in lines:
            place, config = lines[after.workload]
            assert after.source == f"record {place}"
            assert after.config == config == {**before.config, **config}
            assert after.config["m_block"] == 4 != before.config["m_block"]
        else:
            assert after.source == "default"
        sources.append(after.source.rpartition(":")[2])
    # Line 1 of the file is damaged; records occupy the following lines.
    assert sorted(sources) == ["2", "3", "default"]
    assert f"{records.name}:2" in tuned.explain().to_json()


def test_the_results_are_the_same(records: Path) -> None:
    x = np.random.default_rng(3).standard_normal((BATCH, SIZES[0])).astype("float32")
    # A sum of K products in any order is within (K + 1) * u * sum |products| of the exact one, u
    # being 2^-24 (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1); an error of
    # the previous layer passes through |weight|; ReLU amplifies nothing.
    exact, error = x.astype(np.float64), np.zeros(x.shape)
    for weight, bias in parameters(SIZES):
        magnitude = (np.abs(exact) + error) @ np.abs(weight) + np.abs(bias)
        error = error @ np.abs(weight) + (len(weight) + 2) * 2.0**-24 * magnitude
        exact = np.maximum(exact @ weight + bias, 0)
    for file in (None, records):
        executable = tvm_hybrid.compile(mlp(), fusion="fine", num_threads=1, records=file)
        assert (np.abs(executable.run(x)[0].numpy() - exact) <= error).all()
    assert error.max() < 2e-3 < 0.5 < exact.max()


def test_records_of_the_environment(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_HYBRID_RECORDS", str(records))
    sources = [
        decision.source
        for decision in tvm_hybrid.compile(mlp(), fusion="fine", num_threads=1).explain()
    ]
    assert sorted(source == "default" for source in sources) == [False, False, True]


def test_records_that_cannot_be_built_are_passed_over(
    options: PipelineOptions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = options.machine
    store = RecordStore(tmp_path / "wild.jsonl", must_exist=False)
    for region in collect_regions(mlp(), options):
        template = template_for(region.op)
        default = template.default_config(region, machine).to_dict()
        for wild in ({"rows": 10_000}, {"m_block": -1}, {"kernel": "none"}, {"colour": "red"}):
            good = make_record(
                region, template, machine, template.default_config(region, machine), "ok", [1.0]
            )
            fields = {name: getattr(good, name) for name in good.__struct_fields__}
            store.append(type(good)(**{**fields, "config": {**default, **wild}}))
    compiled = compile_module(mlp(), replace(options, lookup=RecordLookup(store)))
    assert {decision.source for decision in compiled.decisions} == {"default"}
    assert caplog.text.count("this record is not used") == 4 * (len(SIZES) - 1)


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [1, 2])
def test_tune_writes_what_compile_reads(tmp_path: Path, threads: int) -> None:
    path = tmp_path / "r.jsonl"
    mod = mlp((16, 32, 8), 4)
    apart: dict[str, Any] = {"fusion": "fine", "records": path}  # two regions instead of one
    result = tvm_hybrid.tune(mod, trials=3, num_threads=threads, **apart)
    assert len(result.regions) == 2 and not result.interrupted
    written = [located.record for located in RecordStore(path)]
    assert {record.status for record in written} == {"ok"}, [record.error for record in written]
    assert {record.threads for record in written} == {threads}
    compiled = tvm_hybrid.compile(mod, num_threads=threads, **apart)
    best = {region.region.key: region.best for region in result.regions}
    for decision in compiled.explain():
        assert decision.source.startswith(f"record {path}:")
        assert decision.config == best[decision.workload]
    other = tvm_hybrid.compile(mod, num_threads=threads + 1, **apart)
    assert {decision.source for decision in other.explain()} == {"default"}
    before = path.read_bytes()
    again = tvm_hybrid.tune(mod, trials=3, num_threads=threads, **apart)
    assert path.read_bytes() == before
    replayed = tvm_hybrid.tune(
        mod,
        replay=path,
        min_gain=0.0,
        num_threads=threads,
        **{**apart, "records": tmp_path / "none"},
    )
    # Without finals the fastest record is the best.
    store = RecordStore(path)
    for region in replayed.regions:
        newest = [located.record for located in latest(store.of_workload(region.region.key))]
        times = [record.relative or math.inf for record in newest]
        chosen = [record.config for record in newest].index(region.best)
        assert times[chosen] == min(times)  # ties are allowed
    assert {region.region.key for region in again.regions} == set(best)
    assert not (tmp_path / "none").exists()


def test_arguments_that_make_no_sense(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with pytest.raises(tvm_hybrid.errors.ConfigError, match="trials"):
        tvm_hybrid.tune(mlp(), trials=0, records=path)
    with pytest.raises(tvm_hybrid.errors.ConfigError, match="timeout"):
        tvm_hybrid.tune(mlp(), timeout=-1, records=path)
    with pytest.raises(tvm_hybrid.errors.ConfigError, match="magic"):
        tvm_hybrid.tune(mlp(), strategy="magic", records=path)
    with pytest.raises(tvm_hybrid.errors.RecordError, match=str(tmp_path)):
        tvm_hybrid.tune(mlp(), records=tmp_path)
    with pytest.raises(tvm_hybrid.errors.RecordError, match="missing"):
        tvm_hybrid.tune(mlp(), replay=tmp_path / "missing.jsonl")
    assert not path.exists()


def test_a_target_that_this_machine_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isa, "host_features", lambda: frozenset({"avx2", "fma", "f16c"}))
    with pytest.raises(tvm_hybrid.errors.IsaError, match="lacks avx512f"):
        tvm_hybrid.tune(mlp(), target="sapphirerapids", records=tmp_path / "r.jsonl")
    assert not (tmp_path / "r.jsonl").exists()

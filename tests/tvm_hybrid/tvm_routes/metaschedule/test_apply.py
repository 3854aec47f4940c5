"""`apply_database`: one call for a module that TVM's users have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax, tirx

from microkernels.base.errors import RecordError
from tvm_hybrid.targets.resolve import host_target
from tvm_hybrid.tvm_routes.metaschedule import apply_database, export_records, regions_of_model
from tvm_hybrid.tvm_routes.metaschedule.workload import legalized

from .regions import arguments, as_tensor, assert_right, matmul, operators, record_of
from .test_import import stored
from .test_model import ROWS, WIDTH, meaning, spelled_out, weights

__all__ = ["weights"]  # a fixture


def programs(mod: IRModule) -> dict[str, str]:
    """Text of every program in a module."""
    return {
        str(gvar.name_hint): function.script()
        for gvar, function in mod.functions_items()
        if isinstance(function, tirx.PrimFunc)
    }


def zero(mod: IRModule) -> IRModule:
    """Legalised and fused by TVM's own pipeline."""
    return relax.get_pipeline("zero")(mod)


@pytest.mark.parametrize("prepare", [lambda mod: mod, zero], ids=["operators", "fused"])
def test_a_model_gets_the_programs_of_a_database(
    prepare: object, weights: list[np.ndarray], tmp_path: Path
) -> None:
    mod = spelled_out(weights)
    regions = [region for region in regions_of_model(mod) if not region.parts]
    store = stored(tmp_path / "records.jsonl", *map(record_of, regions))
    export_records(store, tmp_path / "database", model=mod)
    given = prepare(mod)  # type: ignore[operator]
    before = given.script()
    applied = apply_database(given, tmp_path / "database", host_target())
    assert given.script() == before
    found = programs(applied)
    assert len(found) == 2
    for text in found.values():
        assert '"body"' in text and '_update"' not in text
        assert "layout_free" not in text and "preproc" not in text  # weights are packed
    machine = relax.VirtualMachine(tvm.compile(applied, target=host_target()), tvm.cpu())
    x = np.random.default_rng(1).standard_normal((1, ROWS, WIDTH)).astype(np.float32)
    result = machine["main"](tvm.runtime.tensor(x)).numpy()
    expected, bound = meaning(x.astype(np.float64), weights)
    assert (np.abs(result - expected) <= bound).all()


def test_weights_that_are_arguments_stay_arguments(tmp_path: Path) -> None:
    region = matmul(32, 64, 96)
    store = stored(tmp_path / "records.jsonl", record_of(region))
    export_records(store, tmp_path / "database")
    applied = apply_database(legalized(operators(region)), tmp_path / "database")
    (text,) = programs(applied).values()
    assert '"body"' in text
    machine = relax.VirtualMachine(tvm.compile(applied, target=host_target()), tvm.cpu())
    values = arguments(region)
    tensors = [as_tensor(value, "float32") for value in values]
    assert_right(region, machine["main"](*tensors).numpy(), values)


def test_what_a_database_does_not_have_stays_as_it_was(
    weights: list[np.ndarray], tmp_path: Path
) -> None:
    store = stored(tmp_path / "records.jsonl", record_of(matmul(8, 16, 32)))
    export_records(store, tmp_path / "database")
    mod = zero(spelled_out(weights))
    tvm.ir.assert_structural_equal(apply_database(mod, tmp_path / "database"), mod)


def test_a_folder_without_a_database_is_named(weights: list[np.ndarray], tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="nowhere"):
        apply_database(spelled_out(weights), tmp_path / "nowhere")

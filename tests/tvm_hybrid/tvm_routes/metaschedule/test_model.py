"""TVM's own pipeline compiles a model with the records of the regions that we make of it."""

from __future__ import annotations

from math import erf
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax
from tvm.relax import transform

from tvm_hybrid.targets.resolve import host_target
from tvm_hybrid.tvm_routes.metaschedule import export_records, regions_of_model, register_intrinsics
from tvm_hybrid.tvm_routes.metaschedule.exchange import product_key
from tvm_hybrid.tvm_routes.metaschedule.workload import legalized

from .regions import batch_matmul, conv2d, matmul, record_of
from .test_import import stored

ROWS, WIDTH, INNER = 24, 32, 64
HALF, ROOT = 0.5, 2**0.5


@pytest.fixture(scope="module")
def weights() -> list[np.ndarray]:
    """Weights and biases of two layers."""
    rng = np.random.default_rng(0)
    shapes = ((WIDTH, INNER), (INNER,), (INNER, WIDTH), (WIDTH,))
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def spelled_out(weights: list[np.ndarray]) -> IRModule:
    """x + gelu(x W + b) V + c, with the gelu spelled out as models without that operator do."""
    first, bias, second, shift = (relax.const(weight) for weight in weights)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, ROWS, WIDTH), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            hidden = builder.emit(relax.op.add(relax.op.matmul(x, first), bias))
            scaled = relax.op.divide(hidden, relax.const(ROOT, "float32"))
            erf = relax.op.add(relax.op.erf(scaled), relax.const(1, "float32"))
            product = relax.op.multiply(relax.op.multiply(hidden, erf), relax.const(HALF))
            last = relax.op.add(relax.op.matmul(product, second), shift)
            output = builder.emit_output(relax.op.add(last, x))
        builder.emit_func_output(output)
    return relax.transform.Normalize()(builder.get())


def meaning(x: np.ndarray, weights: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The result in float64, and the error bound of f32.

    A sum of K products errs by K eps of the sum of their magnitudes at most; the slope of gelu is
    below 1.13, and its approximation errs by a few eps of its argument.
    """
    first, bias, second, shift = (weight.astype(np.float64) for weight in weights)
    eps = np.finfo(np.float32).eps
    hidden = x @ first + bias
    activated = HALF * hidden * (1 + np.vectorize(erf)(hidden / ROOT))
    hidden_error = WIDTH * eps * (np.abs(x) @ np.abs(first) + np.abs(bias))
    activated_error = 1.13 * hidden_error + 8 * eps * np.abs(hidden)
    error = activated_error + INNER * eps * np.abs(activated)
    rest = np.abs(shift) + np.abs(x)
    return activated @ second + shift + x, error @ np.abs(second) + 2 * eps * rest


def test_its_programs_get_the_records_of_their_products(
    weights: list[np.ndarray], tmp_path: Path
) -> None:
    mod = spelled_out(weights)
    regions = [region for region in regions_of_model(mod) if not region.parts]
    assert any(step.op == "gelu" for region in regions for step in region.epilogue)
    store = stored(tmp_path / "records.jsonl", *map(record_of, regions))
    without = export_records(store, tmp_path / "without")
    result = export_records(store, tmp_path / "with", model=mod)
    assert result.programs > without.programs  # the gelu is spelled out in TVM's program
    register_intrinsics(tmp_path / "with")
    with host_target():
        applied = transform.MetaScheduleApplyDatabase(str(tmp_path / "with"))(legalized(mod))
    programs = {
        g.name_hint: f.script() for g, f in applied.functions_items() if g.name_hint != "main"
    }
    assert len(programs) == 2
    assert all('"body"' in text for text in programs.values()), programs.keys()
    machine = relax.VirtualMachine(tvm.compile(applied, target=host_target()), tvm.cpu())
    x = np.random.default_rng(1).standard_normal((1, ROWS, WIDTH)).astype(np.float32)
    found = machine["main"](tvm.runtime.tensor(x)).numpy()
    expected, bound = meaning(x.astype(np.float64), weights)
    assert (np.abs(found - expected) <= bound).all()


def test_products_without_a_record_are_named(weights: list[np.ndarray], tmp_path: Path) -> None:
    store = stored(tmp_path / "records.jsonl", record_of(matmul(8, 16, 32)))
    result = export_records(store, tmp_path / "database", model=spelled_out(weights))
    assert result.taken == [matmul(8, 16, 32).key]
    assert len(result.left_out) == 2
    assert {why for _, why in result.left_out} == {"no record of such a product"}


def test_products_are_the_same_whatever_follows_them() -> None:
    region = matmul(24, 32, 64)
    bare = region.replace(epilogue=(), operands=())
    flat = bare.replace(
        inputs=(bare.inputs[0].__class__((24, 32), "float32"), bare.inputs[1]),
        output=bare.output.__class__((24, 64), "float32"),
    )
    assert product_key(region) == product_key(bare) == product_key(flat)
    others = [matmul(24, 32, 48), matmul(24, 32, 64, ("bfloat16", "bfloat16"))]
    others += [batch_matmul(1, 24, 32, 64), conv2d(14, 32, 64)]
    assert len({product_key(other) for other in (region, *others)}) == 5

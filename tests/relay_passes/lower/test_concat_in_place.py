"""Kernels write their results into the output of a concatenation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from relay_passes.ir.graph import op_name
from relay_passes.lower_module import CompiledModule, compile_module
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import MACHINE, TARGET, Body, constant, module
from tests.stand_ins import running

op = relax.op
F = "float32"
X = ((1, 5, 6, 20), F)


def product(x: relax.Expr, n: int, seed: int = 0, k: int = 20) -> relax.Expr:
    """A product with a relu, which becomes one region."""
    return op.nn.relu(op.matmul(x, constant(k, n, seed=seed)))


def built(body: Body, *inputs: tuple[tuple[int, ...], str], **options: Any) -> CompiledModule:
    with running.made_for(MACHINE.isa.name):
        return compile_module(module(body, *inputs), PipelineOptions(TARGET, **options))


def calls(compiled: CompiledModule) -> list[str]:
    """Names of the kernels in main, in order; "in place" if one writes into an earlier result."""
    found = []
    for block in compiled.mod["main"].body.blocks:
        for binding in block.bindings:
            name = op_name(binding.value)
            if name in ("relax.call_tir", "relax.call_tir_inplace"):
                kernel = str(binding.value.args[0].name_hint).removeprefix("tvm_hybrid_")
                found.append(kernel + (" in place" if name.endswith("inplace") else ""))
    return found


def results(compiled: CompiledModule, *arrays: np.ndarray) -> list[np.ndarray]:
    main = relax.VirtualMachine(compiled.executable, tvm.cpu())["main"]
    made = main(*map(tvm.runtime.tensor, arrays))
    return [x.numpy() for x in ([made] if hasattr(made, "numpy") else made)]


def reasons(compiled: CompiledModule) -> list[str]:
    taken = [decision.reason for decision in compiled.decisions if decision.taken]
    return [reason.split("; ", 1)[1] for reason in taken if "; " in reason]


def assert_same(body: Body, *inputs: tuple[tuple[int, ...], str]) -> CompiledModule:
    """The results equal those of regions alone, to the bit: kernels sum in the same order."""
    compiled = built(body, *inputs)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape, dtype in inputs]
    apart = results(built(body, *inputs, fusion="fine"), *arrays)
    for got, wanted in zip(results(compiled, *arrays), apart, strict=True):
        np.testing.assert_array_equal(got, wanted)
    return compiled


def test_two_products() -> None:
    """The lowered module has one tensor and no kernel that copies."""

    def body(x: relax.Expr) -> relax.Expr:
        joint = op.concat([product(x, 36), product(op.exp(x), 28, 1)], -1)
        return product(joint, 17, 2, k=64)

    compiled = assert_same(body, X)
    assert "matmul_placed" in calls(compiled) and "matmul1_placed in place" in calls(compiled)
    assert not any("concat" in name for name in calls(compiled))
    found = reasons(compiled)
    assert found == ["written at channel 0 of 64", "written at channel 36 of 64"]
    names = {decision.function for decision in compiled.decisions}
    assert {"tvm_hybrid_matmul_placed", "tvm_hybrid_matmul1_placed"} <= names


def test_a_result_and_two_threads() -> None:
    compiled = built(lambda x: op.concat([product(x, 360, k=200), product(x, 280, 1, k=200)], -1),
                     ((40, 200), F), threads=2)  # fmt: skip
    x = np.random.default_rng(0).standard_normal((40, 200)).astype(F)
    (got,) = results(compiled, x)
    weights = [constant(200, n, seed=seed).value.numpy() for n, seed in ((360, 0), (280, 1))]
    wanted = np.maximum(x @ np.concatenate(weights, 1), 0)
    # sums of K = 200 products of magnitudes below 5 * 5, in different orders
    assert np.abs(got - wanted).max() <= 2 * 200 * np.finfo(np.float32).eps * 200 * 25


def test_what_is_needed_besides_is_copied() -> None:
    def body(x: relax.Expr) -> list[relax.Expr]:
        small, large = product(x, 8), product(x, 40, 1)
        return [op.concat([x, small, large], -1), op.exp(small)]

    compiled = assert_same(body, X)
    found = reasons(compiled)
    assert "written at channel 28 of 68" in found
    assert "it has other readers" in found and "no region's kernel computes it" in found
    assert sum("copy" in name for name in calls(compiled)) == 2


def test_a_small_part_is_not_worth_it() -> None:
    compiled = assert_same(lambda x: op.concat([x, product(x, 8)], -1), X)
    assert not any("placed" in name for name in calls(compiled))


def test_the_same_twice_stays() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        y = product(x, 8)
        return op.concat([y, y], -1)

    assert not any("placed" in name for name in calls(assert_same(body, X)))


def test_concatenations_of_concatenations() -> None:
    """Concatenations interleaved along two axes, with reshapes between."""

    def body(x: relax.Expr) -> relax.Expr:
        phases = [product(x, 16, seed) for seed in range(4)]
        lines = [
            op.reshape(op.concat(phases[at : at + 2], -1), (1, 5, 6 * 2 * 16)) for at in (0, 2)
        ]
        return op.reshape(op.concat(lines, -1), (1, 10, 12, 16))

    compiled = assert_same(body, X)
    assert len([name for name in calls(compiled) if "placed" in name]) == 4
    assert not any("concat" in name or "copy" in name for name in calls(compiled))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_other_axes(axis: int) -> None:
    compiled = assert_same(
        lambda x, y: op.concat([product(x, 8, k=4), op.nn.softmax(product(y, 8, 1, k=4), 2)], axis),
        ((2, 3, 4), F),
        ((2, 3, 4), F),
    )
    assert sum("placed" in name for name in calls(compiled)) == 2


def test_a_transposed_convolution() -> None:
    weight = constant(16, 32, 3, 3)

    def body(x: relax.Expr) -> relax.Expr:
        y = op.nn.conv2d_transpose(
            x, weight, strides=[2, 2], padding=[1, 1, 1, 1], output_padding=[1, 1]
        )
        return op.nn.relu(op.add(y, constant(1, 32, 1, 1)))

    compiled = assert_same(body, ((1, 16, 5, 6), F))
    assert sum("placed" in name for name in calls(compiled)) == 4


@pytest.mark.parametrize("copied", [False, True])
def test_columns_of_one_element(copied: bool) -> None:
    """Elements of one column are not adjacent, so vectors cannot store them."""

    def body(x: relax.Expr) -> relax.Expr:
        other = constant(12, 1) if copied else op.exp(op.sum(x, -1, keepdims=True))
        return op.concat([product(x, 1), other], -1)

    assert_same(body, ((12, 20), F))


DYNAMIC = (tirx.Var("n", "int64"), tirx.Var("h", "int64"), 6, 20)


def same_for_any_size(body: Body) -> CompiledModule:
    """One program equals regions alone, to the bit, for several sizes."""
    dynamic = (DYNAMIC, F)
    compiled, fine = built(body, dynamic), built(body, dynamic, fusion="fine")
    for n, h in ((1, 5), (3, 1), (2, 7)):
        x = np.random.default_rng(n).standard_normal((n, h, *DYNAMIC[2:])).astype(F)
        for got, wanted in zip(results(compiled, x), results(fine, x), strict=True):
            np.testing.assert_array_equal(got, wanted)
    return compiled


def test_dynamic_sizes() -> None:
    """Any number of rows; a part with another user is copied."""

    def body(x: relax.Expr) -> list[relax.Expr]:
        small, large = product(x, 8), product(op.exp(x), 40, 1)
        return [op.concat([large, small, product(x, 17, 2)], -1), op.exp(small)]

    compiled = same_for_any_size(body)
    assert sum("placed" in name for name in calls(compiled)) == 2
    assert sum("copy" in name for name in calls(compiled)) == 1
    assert "concat" not in " ".join(calls(compiled)).replace("concat_copy", "")


def test_dynamic_sizes_of_concatenations_in_a_row() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        first = op.concat([product(x, 16), product(op.exp(x), 8, 1)], -1)
        return op.concat([first, op.nn.softmax(product(x, 24, 2), -1)], -1)

    compiled = same_for_any_size(body)
    assert sum("placed" in name for name in calls(compiled)) == 3
    assert not any("concat" in name for name in calls(compiled))


def test_a_dynamic_axis_is_not_joined_in_place() -> None:
    """The second part would begin at an offset known only at run time."""
    compiled = same_for_any_size(lambda x: op.concat([product(x, 8), product(x, 8, 1)], 1))
    assert not any("placed" in name for name in calls(compiled))

"""Depthwise and pointwise convolutions merge where that saves time; else a reason stays."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tvm import IRModule, relax, tirx
from tvm.ir import assert_structural_equal

from relay_passes.ir.functions import REASON
from relay_passes.lower_module import collect_regions
from relay_passes.pipeline_options import PipelineOptions
from relay_passes.regions.merge_chains import merge_depthwise
from relay_passes.regions.partition import partition
from tests.relay_passes.graphs import MACHINE, TARGET, Body, bind, constant, module, regions, run
from tir_schedules.chains.depthwise_pointwise_cost import estimate_pair
from tir_schedules.core.attributes import attribute_text
from tir_schedules.core.region import Region

op = relax.op
TWO = dataclasses.replace(MACHINE, threads=2)
X = ((1, 14, 14, 240), "float32")


def depthwise(x: relax.Expr) -> relax.Expr:
    """relu(3x3 convolution of every channel + bias)."""
    c = int(x.ty.shape[-1])
    made = op.nn.conv2d(
        x, constant(3, 3, 1, c), padding=1, groups=c, data_layout="NHWC", kernel_layout="HWIO"
    )
    return bind(op.nn.relu(op.add(made, constant(c, seed=1))))


def pointwise(x: relax.Expr, n: int = 40) -> relax.Expr:
    product = op.matmul(x, constant(int(x.ty.shape[-1]), n, seed=2))
    return bind(op.add(product, constant(n, seed=3)))


def block(x: relax.Expr) -> relax.Expr:
    return pointwise(depthwise(x))


def merged(
    body: Body, *inputs: tuple[tuple[int, ...], str], threads: int = 2
) -> tuple[IRModule, IRModule]:
    """The partitioned module, and the module with pairs merged."""
    machine = dataclasses.replace(MACHINE, threads=threads)
    before = partition(machine.isa, [])(module(body, *inputs))
    after = merge_depthwise(machine)(before)
    relax.analysis.well_formed(after)
    return before, after


def kinds(mod: IRModule) -> list[str]:
    return [region.op for region in regions(mod)]


def pairs(mod: IRModule) -> list[Region]:
    return [region for region in regions(mod) if region.op == "depthwise_pointwise"]


def reasons(mod: IRModule) -> list[str]:
    """The reasons of the region functions that have one."""
    return [
        str(function.attrs[REASON])
        for _, function in mod.functions_items()
        if function.attrs and REASON in function.attrs
    ]


def check_meaning(before: IRModule, after: IRModule) -> None:
    """Both modules compute equal bits: merging moves operators and changes none."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(tuple(map(int, p.ty.shape))) for p in before["main"].params]
    inputs = [array.astype("float32") for array in arrays]
    for wanted, got in zip(run(before, inputs), run(after, inputs), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_both_become_one_region() -> None:
    before, after = merged(block, X)
    assert kinds(before) == ["depthwise_conv2d", "matmul"]
    (pair,) = regions(after)
    assert pair.op == "depthwise_pointwise" and pair.parts == tuple(regions(before))
    assert attribute_text(pair.sources) == "i0,i1,i2;p0,i3,i4"
    assert [tensor.shape for tensor in pair.inputs] == [
        (1, 14, 14, 240), (3, 3, 1, 240), (240,), (240, 40), (40,)
    ]  # fmt: skip
    assert pair.output.shape == (1, 14, 14, 40) and not pair.operands and not pair.epilogue
    (reason,) = reasons(after)
    assert reason.startswith("template depthwise_pointwise: in bands of 7 lines on 2 threads")
    assert "between -" in reason and "calls and barriers -1." in reason
    check_meaning(before, after)


def test_before_and_after() -> None:
    """The merged function has both functions' operators in order, on their arguments."""
    before, after = merged(block, X)
    (call,) = [binding.value for binding in after["main"].body.blocks[0].bindings]
    names = [
        inner.value.op
        for inner in after[call.op].body.blocks[0].bindings
        if isinstance(inner.value, relax.Call)
    ]
    wanted = [
        inner.value.op
        for binding in before["main"].body.blocks[0].bindings
        for inner in before[binding.value.op].body.blocks[0].bindings
        if isinstance(inner.value, relax.Call)
    ]
    assert names == wanted and len(call.args) == 5


def test_any_number_of_images() -> None:
    """A dynamic batch has the blocks of a single image; merging has to pay for eight, too."""
    images = tirx.Var("images", "int64")
    (single,) = pairs(merged(block, X)[1])

    def of_any(threads: int) -> IRModule:
        machine = dataclasses.replace(MACHINE, threads=threads)
        mod = module(block, ((images, 14, 14, 240), "float32"))
        return merge_depthwise(machine)(partition(machine.isa, [])(mod))

    (pair,) = regions(of_any(2))
    assert pair.op == "depthwise_pointwise" and pair.is_dynamic
    assert estimate_pair(pair, TWO).config == estimate_pair(single, TWO).config
    apart = of_any(1)
    assert kinds(apart) == ["depthwise_conv2d", "matmul"]
    assert "does not pay: in bands of" in reasons(apart)[0]


def test_images_of_any_size() -> None:
    """A pair with dynamic lines and columns merges."""
    height, width = tirx.Var("height", "int64"), tirx.Var("width", "int64")
    mod = module(lambda x: block(block(x)), ((1, height, width, 40), "float32"))
    before = partition(MACHINE.isa, [])(mod)
    after = merge_depthwise(TWO)(before)
    assert kinds(after) == ["depthwise_pointwise"] * 2
    assert all(reason.startswith("template depthwise_pointwise: in b") for reason in reasons(after))


def test_a_residual_is_read_from_outside_once() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return bind(op.add(op.matmul(depthwise(x), constant(240, 240)), x))

    before, after = merged(body, X)
    (pair,) = pairs(after)
    assert attribute_text(pair.sources) == "i0,i1,i2;p0,i3,i0"
    check_meaning(before, after)


def test_on_one_thread_f32_stays_apart_and_says_why() -> None:
    before, after = merged(block, X, threads=1)
    assert kinds(after) == kinds(before)
    (reason,) = reasons(after)
    assert "with the depthwise_conv2d before it: does not pay: in bands of" in reason
    assert "on 1 thread an estimated" in reason


def test_few_lines_that_threads_cannot_share_stay_apart() -> None:
    before, after = merged(lambda x: pointwise(depthwise(x), 192), ((1, 7, 7, 1152), "float32"))
    assert kinds(after) == kinds(before)
    assert "does not pay" in reasons(after)[0] and "compute +" in reasons(after)[0]


def two_users(x: relax.Expr) -> list[relax.Expr]:
    made = depthwise(x)
    return [pointwise(made), op.exp(made)]


def two_products(x: relax.Expr) -> list[relax.Expr]:
    made = depthwise(x)
    return [pointwise(made), pointwise(made, 24)]


def also_its_operand(x: relax.Expr) -> relax.Expr:
    made = depthwise(x)
    return bind(op.add(op.matmul(made, constant(240, 240)), made))


def moved(x: relax.Expr) -> relax.Expr:
    return pointwise(bind(op.permute_dims(depthwise(x), [0, 2, 1, 3])))


def an_output(x: relax.Expr) -> list[relax.Expr]:
    made = depthwise(x)
    return [made, pointwise(made)]


@pytest.mark.parametrize("body", [two_users, two_products, also_its_operand, moved, an_output])
def test_what_others_need_is_stored(body: Body) -> None:
    _, after = merged(body, X)
    assert not pairs(after) and "depthwise_conv2d" in kinds(after)


def test_nothing_else_changes() -> None:
    before, after = merged(lambda x: pointwise(bind(op.nn.relu(pointwise(x)))), X)
    assert_structural_equal(after, before)


def test_blocks_one_after_the_other() -> None:
    before, after = merged(lambda x: block(pointwise(block(x), 240)), X)
    assert kinds(after) == ["depthwise_pointwise", "matmul", "depthwise_pointwise"]
    check_meaning(before, after)


def test_only_the_coarse_level_merges() -> None:
    mod = module(block, X)
    found = {
        fusion: [
            region.op
            for region in collect_regions(mod, PipelineOptions(TARGET, threads=2, fusion=fusion))
        ]
        for fusion in ("coarse", "fine", "none")
    }
    assert found["coarse"] == ["depthwise_pointwise"]
    assert "depthwise_pointwise" not in found["fine"] + found["none"]
    assert found["fine"] == ["depthwise_conv2d", "matmul"]

"""Which convolutions use the Winograd template: by fast_math, by estimate, with reasons."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax

from relay_passes.ir.functions import COMPOSITE, REASON, is_region_function
from relay_passes.ir.moving_operators import weight_bytes, weights_of
from relay_passes.lower_module import collect_regions, compile_module
from relay_passes.pipeline_options import FAST_MATH_LEVELS, PipelineOptions
from relay_passes.regions.select_winograd import TOLERANCE, choose, constant_bytes, select_winograd
from tests.relay_passes.graphs import (
    MACHINE,
    TARGET,
    constant,
    module,
    operators,
    partitioned,
    regions,
    run,
)
from tests.stand_ins import running
from tests.tir_schedules.conv_regions import conv_region
from tests.tir_schedules.run_region import machine_for
from tir_schedules.convolution.winograd.algorithm import expected_error
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

op = relax.op
X = ((1, 24, 24, 32), "float32")


def convolution(
    x: relax.Expr, channels: tuple[int, int], kernel: int = 3, seed: int = 0, strides: int = 1
) -> relax.Expr:
    weight = constant(kernel, kernel, *channels, seed=seed)
    return op.nn.conv2d(x, weight, strides, kernel // 2, data_layout="NHWC", kernel_layout="HWIO")


def layers(x: relax.Expr) -> relax.Expr:
    """Four convolutions; the Winograd template can compute the second and the last."""
    y = op.nn.relu(convolution(x, (32, 24), 5))
    y = op.nn.relu(op.add(convolution(y, (24, 32), seed=1), constant(32)))
    y = convolution(y, (32, 32), seed=2, strides=2)
    return op.add(convolution(y, (32, 48), seed=4), constant(48, seed=1))


def selected(mod: IRModule, fast_math: str = "default") -> IRModule:
    return select_winograd(MACHINE, fast_math)(partitioned(mod)[0])


def reasons(mod: IRModule) -> list[str]:
    found = [f for _, f in mod.functions_items() if is_region_function(f)]
    return [str(f.attrs[REASON]) for f in found if f.attrs.get(REASON) is not None]


def test_only_what_winograd_computes_is_moved() -> None:
    before, after = partitioned(module(layers, X))[0], selected(module(layers, X))
    kinds = [region.op for region in regions(after)]
    assert kinds == ["conv2d", "conv2d_winograd", "conv2d", "conv2d_winograd"]
    for old, new in zip(regions(before), regions(after), strict=True):
        assert new.replace(op=old.op) == old
        if new.op == "conv2d_winograd":
            assert new.inputs[1].shape[:2] == (3, 3) and new.attrs["strides"] == (1, 1)
    assert [operators(region) for region in regions(after)][1] == ["add", "relu"]
    relax.analysis.well_formed(after)


def test_the_function_says_which_template_it_is_for_and_why() -> None:
    mod = selected(module(layers, X))
    for _, function in mod.functions_items():
        if is_region_function(function):
            name = str(function.attrs[COMPOSITE]).removeprefix("tvm_hybrid.")
            assert name == Region.from_json(str(function.attrs["tvm_hybrid.region"])).op
    assert len(reasons(mod)) == 2
    for reason in reasons(mod):
        assert reason.startswith("template conv2d_winograd: ") and "ms estimated" in reason
    errors = [f"{expected_error(channels):.1e}" for channels in (24, 32)]
    assert all(any(error in reason for reason in reasons(mod)) for error in errors)


def test_off_never_selects() -> None:
    mod = selected(module(layers, X), "off")
    assert all(region.op != "conv2d_winograd" for region in regions(mod))
    assert reasons(mod) == ["template conv2d; Winograd is not allowed: fast_math is off"] * 2
    for level in FAST_MATH_LEVELS:
        options = PipelineOptions(TARGET, fast_math=level)
        kinds = {region.op for region in collect_regions(module(layers, X), options)}
        assert ("conv2d_winograd" in kinds) == (level != "off")


def layer(size: int, channels: int, out_channels: int | None = None) -> Region:
    extents = (size, size)
    return conv_region(extents, channels, out_channels or channels, (3, 3), padding=(1,) * 4)


def test_default_asks_for_the_error_that_is_to_be_expected() -> None:
    many = layer(16, 4096, 512)
    assert expected_error(4096) > TOLERANCE > expected_error(1024)
    kept = choose(many, MACHINE, "default", cold=False)
    assert not kept.winograd and f"{expected_error(4096):.1e}" in kept.reason
    assert "fast_math on" in kept.reason
    assert choose(many, MACHINE, "on", cold=False).winograd
    assert choose(layer(16, 1024), MACHINE, "default", cold=False).winograd


def test_it_has_to_pay() -> None:
    """Late layers have few pixels, and weights that are four times as large."""
    for threads in (1, 2):
        machine = dataclasses.replace(MACHINE, threads=threads)
        for size, channels in ((56, 64), (28, 128), (14, 256)):
            assert choose(layer(size, channels), machine, "default", cold=True).winograd
        for level in ("default", "on"):
            late = choose(layer(7, 512), machine, level, cold=True)
            assert not late.winograd and "estimated" in late.reason
    assert not choose(layer(1, 64), MACHINE, "on", cold=False).winograd


def test_weights_are_in_memory_where_those_of_the_module_exceed_l3() -> None:
    """Shared constants count once; a layer that pays beside few weights may not pay beside many."""

    def shared(x: relax.Expr) -> relax.Expr:
        weight = constant(32, 32)
        return op.matmul(op.matmul(x, weight), weight)

    assert constant_bytes(module(shared, X)) == 4 * 32 * 32
    weight = 4 * 9 * 256 * 256
    mod = module(lambda x: convolution(x, (256, 256)), ((1, 7, 7, 256), "float32"))
    assert constant_bytes(mod) == weight
    kinds = []
    for l3_bytes in (100 * weight, weight // 2):
        machine = MACHINE.with_numbers(l3_bytes=l3_bytes)
        found = regions(select_winograd(machine)(partitioned(mod)[0]))
        kinds.append(found[0].op)
    assert kinds == ["conv2d_winograd", "conv2d"]


@pytest.mark.parametrize("dynamic_weights", [False, True])
def test_weights_that_are_parameters(dynamic_weights: bool) -> None:
    """Weights packed before a run may use Winograd, and count as weights that may exceed L3."""

    def body(x: relax.Expr, given: relax.Expr, w: relax.Expr) -> relax.Expr:
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        y = op.nn.conv2d(x, op.permute_dims(w, [2, 3, 1, 0]), 1, 1, **layouts)
        return op.nn.conv2d(op.nn.relu(y), given, 1, 1, **layouts)

    mod = module(body, X, ((3, 3, 32, 32), "float32"), ((32, 32, 3, 3), "float32"))
    mod = IRModule({"main": mod["main"].with_attr("num_input", 2)})
    formed = partitioned(mod)[0]
    after = select_winograd(MACHINE, dynamic_weights=dynamic_weights)(formed)
    first = "conv2d_winograd" if dynamic_weights else "conv2d"
    assert [region.op for region in regions(after)] == [first, "conv2d"]
    left = [reason for reason in reasons(after) if "needs a weight that is a constant" in reason]
    assert len(left) == (1 if dynamic_weights else 2)
    assert all("transform_params=True" in reason for reason in left)
    assert weight_bytes(weights_of(mod)) == 4 * 9 * 32 * 32


def test_integers_with_vnni_are_left_alone() -> None:
    def body(q: relax.Expr) -> relax.Expr:
        weight = relax.const(np.ones((3, 3, 32, 32), np.int8))
        wide = op.astype(weight, "int32")
        x = op.astype(q, "int32")
        return op.nn.conv2d(
            x, wide, 1, 1, data_layout="NHWC", kernel_layout="HWIO", out_dtype="int32"
        )

    parts = partitioned(module(body, ((1, 12, 12, 32), "uint8")))[0]
    mod = select_winograd(machine_for("avx512_vnni"), "on")(parts)
    assert all(region.op != "conv2d_winograd" for region in regions(mod)) and not reasons(mod)


def test_a_compiled_model_is_right() -> None:
    mod = module(layers, X)
    x = np.random.default_rng(0).standard_normal(X[0]).astype(np.float32)
    with running.made_for(MACHINE.isa.name):
        compiled = compile_module(mod, PipelineOptions(TARGET))
    chosen = [decision for decision in compiled.decisions if "winograd" in decision.op]
    assert len(chosen) == 2 and all("conv2d_winograd" in d.function for d in chosen)
    assert chosen[0].op == "conv2d_winograd + add + relu"
    result = relax.VirtualMachine(compiled.executable, tvm.cpu())["main"](tvm.runtime.tensor(x))
    (plain,) = run(mod, [x])
    # Four layers, each with an error below 1e-5 of its results (expected_error).
    assert np.abs(result.numpy() - plain).max() < 1e-4 * np.abs(plain).max()


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_integers_without_vnni_are_exact_and_need_no_permission(isa: str) -> None:
    large = conv_region((28, 28), 128, 128, (3, 3), padding=(1,) * 4, dtype="uint8")
    choice = choose(large, machine_for(isa), "off", cold=False)
    assert choice.winograd and choice.reason.endswith("; exact")
    small = conv_region((3, 3), 16, 16, (3, 3), padding=(1,) * 4, dtype="uint8")
    assert not choose(small, machine_for(isa), "on", cold=False).winograd


@pytest.mark.parametrize("isa", ["avx2_vnni", "avx512_vnni", "amx"])
def test_integers_with_vnni_stay(isa: str) -> None:
    region = conv_region((28, 28), 128, 128, (3, 3), padding=(1,) * 4, dtype="uint8")
    moved = region.replace(op="conv2d_winograd")
    assert template_for(moved.op).rejection(moved, machine_for(isa).isa) is not None

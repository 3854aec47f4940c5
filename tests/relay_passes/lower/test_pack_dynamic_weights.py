"""Operators pack weights that are parameters as constants are packed at compile time."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tvm import IRModule, relax
from tvm.relax import op

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.ir.entries import MAIN
from relay_passes.ir.functions import is_region_function
from relay_passes.lower.lower_regions import select_configs
from relay_passes.lower.weights import pack_dynamic_weights
from relay_passes.pipeline_options import PipelineOptions
from relay_passes.regions.merge_chains import merge_chains
from relay_passes.regions.partition import partition
from tests.microkernels.isa_targets import target_of
from tests.relay_passes.graphs import Body, module, run
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

CPUS = {"haswell": "avx2", "znver4": "avx512", "cooperlake": "avx512_bf16", "sapphirerapids": "amx"}
X, W = (9, 37), (37, 50)


def product(x: relax.Expr, w: relax.Expr) -> relax.Expr:
    return op.nn.relu(op.matmul(x, w, out_dtype="float32"))


def regions_of(mod: IRModule, machine: Machine, inputs: int = 1) -> IRModule:
    """The module with regions, in which inputs after the first ones are weights."""
    main = mod[MAIN].with_attr("num_input", inputs)
    mod = IRModule({**dict(mod.functions_items()), mod.get_global_var(MAIN): main})
    formed = partition(machine.isa, [], dynamic_weights=True)(mod)
    return select_configs(machine, None)(merge_chains(machine)(formed))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_packed_weight_of_every_kernel(cpu: str, dtype: str) -> None:
    machine = Machine(cpu, isa_named(CPUS[cpu]))
    mod = regions_of(module(product, (X, dtype), (W, dtype)), machine)
    (function,) = (each for each in mod.functions.values() if is_region_function(each))
    region = Region.from_json(str(function.attrs["tvm_hybrid.region"]))
    assert region.op == "matmul" and region.inputs[1].constant
    check_packing(region, machine, dtype)


def convolution(groups: int) -> Body:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC"}
        return op.nn.conv2d(x, w, groups=groups, out_dtype="float32", **layouts)

    return body


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    ("groups", "weight", "dtype"),
    [
        (1, (3, 3, 12, 37), "float32"),
        (1, (3, 3, 3, 37), "bfloat16"),
        (1, (3, 3, 13, 37), "bfloat16"),
        (2, (1, 3, 10, 34), "float32"),
        (2, (2, 2, 9, 34), "bfloat16"),
        (19, (3, 3, 1, 19), "float32"),
        (19, (3, 3, 1, 19), "bfloat16"),
        (70, (4, 2, 1, 70), "bfloat16"),
    ],
)
def test_the_packed_weight_of_every_convolution(
    cpu: str, groups: int, weight: tuple[int, ...], dtype: str
) -> None:
    machine = Machine(cpu, isa_named(CPUS[cpu]))
    image = (1, 7, 8, weight[2] * groups)
    mod = regions_of(module(convolution(groups), (image, dtype), (weight, dtype)), machine)
    (function,) = (each for each in mod.functions.values() if is_region_function(each))
    region = Region.from_json(str(function.attrs["tvm_hybrid.region"]))
    assert region.op == ("depthwise_conv2d" if weight[2] == 1 else "conv2d")
    assert region.inputs[1].constant
    check_packing(region, machine, dtype)


@pytest.mark.sampled
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("int8", 7), ("uint8", "an input")])
@pytest.mark.parametrize(
    ("groups", "weight"),
    [(1, (3, 3, 3, 37)), (1, (3, 2, 13, 37)), (2, (2, 2, 9, 34)), (70, (3, 3, 1, 70))],
)
def test_the_packed_weight_of_integers(
    cpu: str, dtype: str, zero: int | str, groups: int, weight: tuple[int, ...]
) -> None:
    """The packed weight includes the terms of zero points, which differ at an image's edges."""
    machine = Machine(cpu, isa_named(CPUS[cpu]))

    def body(x: relax.Expr, z: relax.Expr, w: relax.Expr) -> relax.Expr:
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC"}
        point = op.astype(z, "int32") if zero == "an input" else relax.const(zero, "int32")
        centred = op.subtract(op.astype(x, "int32"), point)
        wide = op.astype(w, "int32")
        return op.nn.conv2d(centred, wide, padding=1, groups=groups, out_dtype="int32", **layouts)

    image = (1, 7, 8, weight[2] * groups)
    mod = regions_of(module(body, (image, dtype), ((), dtype), (weight, "int8")), machine, 2)
    (function,) = (each for each in mod.functions.values() if is_region_function(each))
    region = Region.from_json(str(function.attrs["tvm_hybrid.region"]))
    assert region.op == ("depthwise_conv2d" if weight[2] == 1 else "conv2d")
    assert region.attrs.get("a_zero_point") == ("input" if zero == "an input" else zero)
    check_packing(region, machine, "int8")


def test_a_weight_that_two_read_alike_is_packed_once() -> None:
    """Convolutions with other strides over other images may share one packed weight."""
    machine = Machine("znver4", isa_named("avx512"))
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC"}

    def body(x: relax.Expr, w: relax.Expr, v: relax.Expr) -> list[relax.Expr]:
        y = op.nn.conv2d(x, w, padding=1, **layouts)
        once = op.nn.conv2d(y, w, padding=1, **layouts)
        other = op.nn.conv2d(y, w, strides=2, **layouts)
        return [once, other, op.nn.conv2d(y, v, **layouts)]

    shapes = ((1, 9, 11, 16), (3, 3, 16, 16), (3, 3, 16, 16))
    mod = regions_of(module(body, *((shape, "float32") for shape in shapes)), machine)
    packed = pack_dynamic_weights(machine.isa)(mod)[MAIN]
    calls = [
        binding.value
        for block in packed.body.blocks
        for binding in block.bindings
        if isinstance(getattr(binding.value, "op", None), relax.GlobalVar)
    ]
    weights = [call.args[1] for call in calls]
    assert len(calls) == 4
    assert weights[0].same_as(weights[1]) and weights[0].same_as(weights[2])
    assert not weights[0].same_as(weights[3])
    assert packed.script().count("R.flatten") == 2


def check_packing(region: Region, machine: Machine, dtype: str) -> None:
    """The second input packed by operators equals its packing as a constant."""
    template = template_for(region.op)
    packing = template.packing
    assert packing is not None
    config = template.default_config(region, machine)
    shape = region.inputs[1].shape
    weight = 30 * np.random.default_rng(0).standard_normal(shape)
    array = weight.astype(getattr(ml_dtypes, dtype, dtype))
    wanted = packing(region, config, machine.isa, 1).pack(array)

    def express(w: relax.Expr) -> relax.Expr:
        return op.astype(packing(region, config, machine.isa, 1).pack(w), "float32")

    (packed,) = run(module(express, (shape, dtype)), [array])
    np.testing.assert_array_equal(packed, wanted.astype(np.float32))


def test_only_what_is_a_weight_is_packed() -> None:
    machine = Machine("znver4", isa_named("avx512"))
    mod = module(product, (X, "float32"), (W, "float32"))
    as_inputs, as_weights = (regions_of(mod, machine, inputs) for inputs in (2, 1))
    assert "fused_batch_matmul" in as_inputs.script()
    assert pack_dynamic_weights(machine.isa)(as_inputs)[MAIN].script() == as_inputs[MAIN].script()
    packed = pack_dynamic_weights(machine.isa)(as_weights)[MAIN].script()
    assert "R.flatten" in packed and "fused_matmul" in packed


def test_old_names_of_weights_work_for_one_release() -> None:
    target = target_of("avx2")
    with pytest.warns(DeprecationWarning, match="^open_weights is now dynamic_weights$"):
        options = PipelineOptions(target, open_weights=True)  # type: ignore[call-arg]
        assert options.dynamic_weights and options.open_weights

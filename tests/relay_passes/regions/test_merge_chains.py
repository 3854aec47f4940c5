"""Chains of regions become one region where that saves time, and keep a reason elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal

import tvm_hybrid
from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.ir.dynamic_quantize import emit_dynamic_quantize
from relay_passes.ir.functions import REASON, REGION
from relay_passes.lower_module import collect_regions
from relay_passes.pipeline_options import PipelineOptions
from relay_passes.regions.merge_chains import merge_chains
from relay_passes.regions.partition import partition
from tests.relay_passes.graphs import MACHINE, TARGET, Body, bind, constant, module, regions, run
from tests.relay_passes.quantized import dequantize, quantize
from tir_schedules.core.attributes import attribute_text
from tir_schedules.core.region import Region
from tvm_hybrid.runtime.feeds import BFLOAT16

op = relax.op
F = "float32"
ROWS = (12, 20)
TWO = dataclasses.replace(MACHINE, threads=2)
RNG = np.random.default_rng(0)


def layer(x: relax.Expr, n: int, seed: int = 0) -> relax.Expr:
    """relu(x @ w + b)."""
    k = int(x.ty.shape[-1])
    product = op.matmul(x, constant(k, n, seed=seed))
    return op.nn.relu(op.add(product, constant(n, seed=seed + 1)))


def norm(x: relax.Expr, axis: int = -1) -> relax.Expr:
    n = int(x.ty.shape[axis])
    shape = tuple(map(int, x.ty.shape))[axis:]
    assert shape[0] == n
    return op.nn.layer_norm(x, constant(*shape, seed=5), constant(*shape, seed=6), axes=[axis])


def merged(
    body: Body, *inputs: tuple[tuple[int, ...], str], machine: Machine = MACHINE
) -> tuple[IRModule, IRModule]:
    """The partitioned module, and the module with chains merged."""
    before = partition(machine.isa, [])(module(body, *inputs))
    after = merge_chains(machine)(before)
    relax.analysis.well_formed(after)
    return before, after


def reasons(mod: IRModule) -> list[str]:
    """The reasons of main's calls, in order; "" for a call without one."""
    return [
        str(mod[binding.value.op].attrs.get(REASON, ""))
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(getattr(binding.value, "op", None), relax.GlobalVar)
    ]


def sources(region: Region) -> str:
    assert region.op == "mlp_chain"
    return attribute_text(region.sources)


def check_meaning(before: IRModule, after: IRModule) -> None:
    """Both modules compute equal bits: merging moves operators and changes none."""
    arrays = [RNG.standard_normal(tuple(map(int, p.ty.shape))) for p in before["main"].params]
    inputs = [array.astype(F) for array in arrays]
    for wanted, got in zip(run(before, inputs), run(after, inputs), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_layers_become_one_region() -> None:
    before, after = merged(
        lambda x: layer(bind(layer(bind(layer(x, 30)), 20)), 7, seed=3), (ROWS, F)
    )
    (chain,) = regions(after)
    assert chain.parts == tuple(regions(before))
    assert sources(chain) == "i0,i1,i2;p0,i3,i4;p1,i5,i6"
    assert [tensor.shape for tensor in chain.inputs[:3]] == [(12, 20), (20, 30), (30,)]
    assert chain.output.shape == (12, 7) and not chain.operands and not chain.epilogue
    (reason,) = reasons(after)
    assert reason.startswith("template mlp_chain: by blocks of 12 rows on 1 thread")
    assert "calls and barriers -0.7" in reason
    check_meaning(before, after)


def residual_block(x: relax.Expr) -> relax.Expr:
    """Projection, residual and norm; up, gelu, down, residual and norm."""
    first = bind(norm(bind(op.add(op.matmul(x, constant(20, 20)), x))))
    up = bind(op.nn.gelu(op.matmul(first, constant(20, 48, seed=1))))
    down = bind(op.matmul(up, constant(48, 20, seed=2)))
    return norm(bind(op.add(down, first)))


def test_a_residual_is_read_from_an_earlier_part() -> None:
    before, after = merged(residual_block, (ROWS, F))
    (chain,) = regions(after)
    assert [part.op for part in chain.parts] == [
        "matmul",
        "layer_norm",
        "matmul",
        "matmul",
        "layer_norm",
    ]
    # x is read by the product and as its residual, but is one input.
    assert sources(chain) == "i0,i1,i0;p0,i2,i3;p1,i4;p2,i5,p1;p3,i6,i7"
    check_meaning(before, after)


def test_a_branch_that_the_chain_closes_is_part_of_it() -> None:
    """silu(x @ gate) * (x @ up) @ down: both branches are part of the chain."""

    def body(x: relax.Expr) -> relax.Expr:
        x = bind(norm(x))
        gate = bind(op.nn.silu(op.matmul(x, constant(20, 24))))
        up = bind(op.multiply(op.matmul(x, constant(20, 24, seed=1)), gate))
        return op.matmul(up, constant(24, 20, seed=2))

    before, after = merged(body, (ROWS, F))
    (chain,) = regions(after)
    assert sources(chain) == "i0,i1,i2;p0,i3;p0,i4,p1;p2,i5"
    check_meaning(before, after)


def test_rows_may_be_regrouped_between_parts() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        y = bind(op.reshape(bind(norm(x)), (12, 20)))
        y = bind(op.reshape(bind(layer(y, 8)), (4, 3, 8)))
        return norm(y)

    before, after = merged(body, ((2, 6, 20), F))
    (chain,) = regions(after)
    assert [part.op for part in chain.parts] == ["layer_norm", "matmul", "layer_norm"]
    assert sources(chain).startswith("i0,i1,i2;p0,i3,i4;p1,")
    check_meaning(before, after)


def heads(x: relax.Expr) -> list[relax.Expr]:
    x = bind(norm(x))
    return [op.matmul(x, constant(20, 8, seed=seed)) for seed in (1, 2, 3)]


def needed_outside(x: relax.Expr) -> list[relax.Expr]:
    y = bind(layer(x, 20))
    return [y, layer(y, 8, seed=2)]


def used_between(x: relax.Expr) -> relax.Expr:
    """The sum over rows needs all rows before the second product begins."""
    y = bind(layer(x, 20))
    total = bind(op.sum(y, axis=[0], keepdims=True))
    return op.add(op.matmul(y, constant(20, 20, seed=2)), total)


def other_rows(x: relax.Expr) -> relax.Expr:
    return layer(bind(op.reshape(bind(layer(x, 20)), (24, 10))), 8, seed=2)


def permuted(x: relax.Expr) -> relax.Expr:
    return layer(bind(op.permute_dims(bind(layer(x, 20)))), 8, seed=2)


def broadcast(x: relax.Expr) -> relax.Expr:
    """One row that all rows of another product need."""
    row = bind(op.matmul(constant(1, 20), constant(20, 20, seed=1)))
    return op.add(op.matmul(x, constant(20, 20)), row)


def two_axes(x: relax.Expr) -> relax.Expr:
    """A normalisation over two dimensions is not a normalisation of rows."""
    x = bind(op.reshape(bind(op.matmul(x, constant(20, 20))), (4, 3, 20)))
    return op.nn.layer_norm(x, constant(3, 20, seed=5), constant(3, 20, seed=6), axes=[-2, -1])


@pytest.mark.parametrize(
    "body", [heads, needed_outside, used_between, other_rows, permuted, broadcast, two_axes]
)
def test_what_is_no_chain_stays_as_it_is(body: Body) -> None:
    before, after = merged(body, (ROWS, F))
    assert not any(region.op == "mlp_chain" for region in regions(after))
    assert_structural_equal(before, after)


def test_a_chain_ends_before_what_is_needed_twice() -> None:
    """The chain has the first two layers; their result is also an output."""

    def body(x: relax.Expr) -> list[relax.Expr]:
        y = bind(layer(bind(layer(x, 16)), 20))
        return [y, layer(y, 8, seed=2)]

    before, after = merged(body, (ROWS, F))
    assert [region.op for region in regions(after)] == ["mlp_chain", "matmul"]
    check_meaning(before, after)


def test_equal_weights_are_inputs_of_their_own() -> None:
    """A weight that two parts share becomes two inputs, as each part packs its own."""
    shared, bias = constant(20, 20), constant(20)

    def body(x: relax.Expr) -> relax.Expr:
        for _ in range(2):
            x = bind(op.add(op.matmul(x, shared), bias))
        return x

    before, after = merged(body, (ROWS, F))
    assert sources(regions(after)[0]) == "i0,i1,i2;p0,i3,i4"
    check_meaning(before, after)


def wide(x: relax.Expr) -> relax.Expr:
    return layer(bind(layer(x, 3072)), 768, seed=2)


def test_a_merge_that_does_not_pay_leaves_its_reason() -> None:
    """A saved call is a small part of thousands of microseconds; of a small product it is more."""
    shape = ((128, 768), F)
    before, after = merged(wide, shape)
    assert regions(after) == regions(before)
    first, second = reasons(after)
    assert not first
    assert second.startswith("template matmul; not merged with the regions before it: does not pay")
    assert "calls and barriers -0.3" in second

    def narrow(x: relax.Expr) -> relax.Expr:
        return layer(bind(layer(x, 256)), 128, seed=2)

    _, shared = merged(narrow, ((128, 64), F), machine=TWO)
    assert [region.op for region in regions(shared)] == ["mlp_chain"]
    assert "blocks of 64 rows on 2 threads" in reasons(shared)[0]


def test_weights_that_come_from_memory_ask_for_more() -> None:
    """In a model whose weights exceed the cache, a saved call is too small a part of the time."""

    def body(x: relax.Expr) -> relax.Expr:
        return layer(bind(layer(x, 256)), 128, seed=2)

    shape = ((128, 64), F)
    _, after = merged(body, shape)
    assert [region.op for region in regions(after)] == ["mlp_chain"]
    before, apart = merged(
        body, shape, machine=dataclasses.replace(TWO, threads=1).with_numbers(l3_bytes=64 << 10)
    )
    assert regions(apart) == regions(before)
    assert "does not pay" in reasons(apart)[1] and "5.00% counts" in reasons(apart)[1]


def test_the_part_of_a_chain_that_pays_is_merged() -> None:
    """Two small products pay; the two large ones after them read their weights from memory."""

    def body(x: relax.Expr) -> relax.Expr:
        x = layer(bind(layer(x, 64)), 2048, seed=2)
        return layer(bind(layer(bind(x), 1024, seed=3)), 2048, seed=4)

    before, after = merged(body, ((64, 64), F))
    small, large = regions(after)[0], regions(before)[2:]
    assert small.op == "mlp_chain" and small.parts == tuple(regions(before)[:2])
    assert regions(after)[1:] == large
    kept = reasons(after)
    assert "does not pay" in kept[1] and "does not pay" in kept[2]


def dynamic(x: relax.Expr) -> relax.Expr:
    weight = relax.const(RNG.integers(-128, 128, (20, 20)).astype(np.int8))
    for _ in range(2):
        q, scale, zero = emit_dynamic_quantize(relax.BlockBuilder.current(), bind(x))
        x = op.matmul(op.dequantize(q, scale, zero), dequantize(weight, 0.02, 0, "int8"))
    return x


def test_ranges_of_whole_tensors_are_no_parts() -> None:
    """The scale of dynamically quantised rows depends on all rows."""
    options = PipelineOptions(TARGET)
    found = collect_regions(module(dynamic, (ROWS, F)), options)
    assert found and not any(region.parts for region in found)


def static(x: relax.Expr) -> relax.Expr:
    """Three layers in QDQ form."""
    x = quantize(x, 0.05, 128)
    for number, (k, n) in enumerate([(13, 40), (40, 24), (24, 16)]):
        weight = relax.const(RNG.integers(-128, 128, (k, n)).astype(np.int8))
        real = op.matmul(dequantize(x, 0.05, 128), dequantize(weight, 0.01, 0, "int8"))
        x = quantize(op.nn.relu(real), 0.05 * (number + 1), 128 if number == 0 else 0)
    return dequantize(x, 0.15, 0)


def floats(x: relax.Expr) -> relax.Expr:
    return layer(bind(layer(bind(layer(x, 40)), 24, seed=2)), 16, seed=4)


def halves(x: relax.Expr) -> relax.Expr:
    for k, n in [(13, 40), (40, 24), (24, 16)]:
        weight = relax.const(RNG.standard_normal((k, n)).astype(BFLOAT16))
        x = op.nn.relu(op.matmul(op.astype(x, "bfloat16"), weight, out_dtype=F))
    return x


MODELS: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "f32": floats,
    "bf16": halves,
    "int8": static,
}


@pytest.mark.isa("avx512_bf16")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_three_layers_is_one_kernel(name: str, threads: int) -> None:
    """One kernel gives the results of three: integers exactly, floats to their last bits."""
    mod = module(MODELS[name], ((9, 13), F))
    x = RNG.standard_normal((9, 13)).astype(F)
    results = {}
    for fusion in ("coarse", "fine"):
        executable = tvm_hybrid.compile(mod, num_threads=threads, fusion=fusion)
        results[fusion] = executable.run(x)[0].numpy()
        taken = executable.explain().taken
        if fusion == "fine":
            assert [decision.op.split()[0] for decision in taken] == ["matmul"] * 3
        else:
            (decision,) = taken
            assert decision.op.startswith("mlp_chain (matmul") and decision.op.count("matmul") == 3
            assert decision.function == "tvm_hybrid_mlp_chain"
            assert decision.config["mode"] in ("rows", "columns")
            assert "calls and barriers -" in decision.reason
    if name == "int8":
        np.testing.assert_array_equal(results["coarse"], results["fine"])
    # Each layer sums up to 40 products, in another order if the tiles differ: K * eps each.
    bound = 3 * 40 * np.finfo(F).eps if name == "f32" else 2.0**-7
    np.testing.assert_allclose(
        results["coarse"], results["fine"], rtol=0, atol=bound * np.abs(results["fine"]).max()
    )


def test_bfloat16_and_integers_merge_as_they_are_partitioned() -> None:
    machine = dataclasses.replace(MACHINE, isa=isa_named("avx512_bf16"))
    _, after = merged(halves, ((9, 13), F), machine=machine)
    (chain,) = regions(after)
    assert [part.inputs[1].dtype for part in chain.parts] == ["bfloat16"] * 3
    (name,) = [g for g in after.get_global_vars() if g.name_hint != "main"]
    assert Region.from_json(str(after[name].attrs[REGION])) == chain

"""Recurrent layers between guard pages, compared with their equations in float64."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tvm
from tvm import relax

from microkernels.base.errors import ConfigError
from tests.tir_schedules.dynamic_regions import BATCH, LENGTH, DynamicKernel, at_sizes
from tests.tir_schedules.recurrent_regions import all_given, recurrent, recurrent_inputs
from tests.tir_schedules.run_region import INTEGER_ISAS, ISAS, Kernel, highest_native, machine_for
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for
from tir_schedules.recurrent.activations import ACTIVATIONS
from tir_schedules.recurrent.config import RecurrentConfig
from tir_schedules.recurrent.problem import DIRECTIONS, GATES
from tir_schedules.recurrent.recurrent import RECURRENT_ATTRS, plain_function
from tvm_hybrid.runtime.feeds import BFLOAT16, array_of, tensor_of

TEMPLATE = template_for("recurrent")
NATIVE = highest_native(ISAS)


def bound(region: Region) -> float:
    """Largest error of any state, which lies between -1 and 1.

    A step adds the rounding errors of sums of `hidden` products of numbers below 1, or whose
    squares add up to one, and 8 ulp of functions. A gate's slope is at most 1, and forgetting or a
    weight with rows of length 1 damps what reaches the next step: errors of steps add up at worst.
    """
    steps, hidden = region.inputs[0].shape[0], region.inputs[1].shape[-1]
    eps = float(np.finfo(region.output.dtype).eps)
    return (steps + 1) * (hidden**0.5 + 8) * 2 * eps


def check(region: Region, result: np.ndarray, arrays: list[np.ndarray]) -> None:
    wanted = TEMPLATE.reference(region, arrays)
    assert result.shape == wanted.shape
    if result.size:
        assert np.abs(result - wanted).max() <= bound(region)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize(
    ("batch", "hidden", "whole"), [(1, 33, False), (3, 20, True), (13, 5, True), (2, 1, False)]
)
def test_cells(cell: str, direction: str, isa: str, batch: int, hidden: int, whole: bool) -> None:
    given = all_given(cell) if whole else []
    region = recurrent(cell, 4, batch, hidden, direction, given, clip=1.5 * whole)
    arrays = recurrent_inputs(region)
    kernel = Kernel(region, isa)
    for at_end in (True, False):
        check(region, kernel.run(arrays, at_end), arrays)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cell", GATES)
def test_any_number_of_steps_and_sequences(cell: str, isa: str) -> None:
    """Also no step and no sequence: a sequence without steps ends in its initial state."""
    region = recurrent(cell, LENGTH, BATCH, 19, "bidirectional", all_given(cell))
    kernel = DynamicKernel(region, isa)
    for steps, batch in ((0, 2), (3, 0), (1, 1), (5, 7), (2, 26)):
        values = {"length": steps, "batch": batch}
        known = at_sizes(region, values)
        arrays = recurrent_inputs(known, seed=batch)
        check(known, kernel.run(values, arrays), arrays)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("threads", [2, 5])
def test_threads_share_directions_and_sequences(cell: str, threads: int) -> None:
    for batch in (5, BATCH):
        region = recurrent(cell, 3, batch, 24, "bidirectional", ["lengths"])
        machine = machine_for(NATIVE, threads).with_numbers(fork_us=0)
        config = TEMPLATE.default_config(region, machine)
        assert config.threads == threads
        known = at_sizes(region, {"batch": 5})
        arrays = recurrent_inputs(known)
        if region.is_dynamic:
            result = DynamicKernel(region, NATIVE, threads, config).run({"batch": 5}, arrays)
        else:
            result = Kernel(region, NATIVE, config, threads).run(arrays)
        check(known, result, arrays)


@pytest.mark.parametrize("cell", ["lstm", "gru", "gru_linear"])
def test_every_configuration_is_right(cell: str) -> None:
    region = recurrent(cell, 2, 5, 4 * 16 + 3, given=["hidden"])
    arrays = recurrent_inputs(region)
    configs = list(TEMPLATE.space(region, machine_for(NATIVE)))
    assert len({(each.rows, each.units) for each in configs}) == len(configs) > 2
    for config in configs[:6]:
        check(region, Kernel(region, NATIVE, config).run(arrays), arrays)


@pytest.mark.parametrize("weight", ["int8", "int16"])
@pytest.mark.parametrize("isa", INTEGER_ISAS)
@pytest.mark.parametrize(("batch", "hidden"), [(3, 21), (1, 5), (14, 32), (2, 71)])
def test_weights_of_integers(isa: str, batch: int, hidden: int, weight: str) -> None:
    """Each step is compared separately, so that states are rounded to equal levels."""
    region = recurrent("lstm", 5, batch, hidden, "bidirectional", weight=weight)
    arrays = recurrent_inputs(region)
    kernel = Kernel(region, isa)
    result = kernel.run(arrays)
    check_steps(region, arrays, result)
    np.testing.assert_array_equal(kernel.run(arrays, at_end=False), result)


def check_steps(region: Region, arrays: list[np.ndarray], result: np.ndarray) -> None:
    """Compares each step's h with the step computed from the previous h."""
    steps, batch, _ = region.inputs[0].shape
    hidden, dtype = region.inputs[1].shape[-1], region.inputs[1].dtype
    step = recurrent("lstm", 1, batch, hidden, given=["hidden", "memory"], weight=dtype)
    for side, times in enumerate((range(steps), range(steps)[::-1])):
        part = arrays[0].reshape(steps, batch, 2, -1)[:, :, side]
        weight, scales = arrays[1][side][None], arrays[-1][side][None]
        states = [np.zeros((1, batch, hidden), np.float32)] * 2
        for time in times:
            wanted = TEMPLATE.reference(step, [part[time][None], weight, *states, scales])
            assert np.abs(result[time, side] - wanted[0]).max() <= bound(region)
            states = [result[time, side][None], wanted[2].astype(np.float32)]


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("weight", ["float64", "float16", "bfloat16"])
def test_weights_of_other_floats(weight: str, cell: str, isa: str) -> None:
    """Narrow weights are widened when they are packed: products are of float32."""
    region = recurrent(cell, LENGTH, BATCH, 21, "bidirectional", all_given(cell), weight)
    kernel = DynamicKernel(region, isa)
    for steps, batch in ((0, 1), (4, 3), (3, 14)):
        values = {"length": steps, "batch": batch}
        known = at_sizes(region, values)
        arrays = recurrent_inputs(known)
        assert arrays[0].dtype == ("float64" if weight == "float64" else "float32")
        check(known, kernel.run(values, arrays), arrays)


@pytest.mark.parametrize("hidden", [32, 37])
@pytest.mark.parametrize("cell", GATES)
def test_instructions_for_bfloat16(cell: str, hidden: int) -> None:
    """Such instructions read h as bfloat16; a GRU also rounds its reset state."""
    isa = "avx512_bf16"
    region = recurrent(cell, LENGTH, BATCH, hidden, "bidirectional", all_given(cell), "bfloat16")
    kernel = DynamicKernel(region, isa)
    assert TEMPLATE.kernel_name(region, kernel.config, kernel.isa).startswith("avx512_bf16_bf16")
    for steps, batch in ((0, 1), (1, 3), (4, 5)):
        values = {"length": steps, "batch": batch}
        known = at_sizes(region, values)
        arrays = recurrent_inputs(known)
        arrays[2] = arrays[2].astype(BFLOAT16).astype(np.float32)  # the initial h
        result = kernel.run(values, arrays)
        if steps < 2 and cell != "gru":
            check(known, result, arrays)
        # A rounding of 2^-9 of each h, by weights whose squares add up to one.
        wanted = TEMPLATE.reference(known, arrays)
        assert np.abs(result - wanted).max(initial=0) <= (steps + 1) * 2**-9 * hidden**0.5


FUNCTIONS = [
    *("Affine:0.9:-0.1", "Elu:0.7", "HardSigmoid:0.3:0.45", "LeakyRelu:0.2", "Relu"),
    *("ScaledTanh:0.7:1.3", "Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu:0.25"),
]


@pytest.mark.parametrize("isa", ["scalar", NATIVE])
@pytest.mark.parametrize("weight", ["float32", "float64"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions(function: str, weight: str, isa: str) -> None:
    """Special values, too: nothing is multiplied, so a NaN stays in its element."""
    assert {each.split(":")[0] for each in FUNCTIONS} == set(ACTIVATIONS)
    region = recurrent("rnn", 1, 4, 8, weight=weight, activations=[function], finals=False)
    part, matrix = recurrent_inputs(region)
    special = [0.0, -0.0, 0.25, -1e-30, np.inf, -np.inf, np.nan, 30.0, -30.0, 100.0, -100.0]
    part.reshape(-1)[: len(special)] = special
    result = Kernel(region, isa).run([part, np.zeros_like(matrix)])
    with np.errstate(all="ignore"):
        wanted = TEMPLATE.reference(region, [part, np.zeros_like(matrix)])
    # 8 ulp of the function, of its float32 parameters, and of what it adds, at most 1.
    eps = float(np.finfo(weight).eps)
    np.testing.assert_allclose(result, wanted, 8 * eps, 8 * eps)


def test_an_lstm_that_forgets_what_it_takes_in() -> None:
    region = recurrent("lstm", 6, 2, 12, coupled=True, finals=False)
    arrays = recurrent_inputs(region)
    result = Kernel(region, NATIVE).run(arrays)
    assert result.shape == (6, 1, 2, 12)
    check(region, result, arrays)


@pytest.mark.parametrize("isa", ["scalar", "avx512_vnni"])
def test_packing_of_8_bits(isa: str) -> None:
    """`test_large_pairs` has the pairs of CPUs without VNNI."""
    region = recurrent("lstm", 3, 2, 21, "bidirectional", weight="int8")
    machine = machine_for(isa)
    config, packing = TEMPLATE.default_config(region, machine), TEMPLATE.packing
    assert packing is not None
    array = recurrent_inputs(region)[1]
    packed = packing(region, config, machine.isa, 1).pack(array)
    assert packed.shape == packing(region, config, machine.isa, 1).shape
    assert packed.dtype == "int8"
    flat = relax.Var("w", relax.TensorType(packed.shape, str(packed.dtype)))
    unpacked = packing(region, config, machine.isa, 1).unpack(flat)
    np.testing.assert_array_equal(evaluated(flat, unpacked, packed), array)


@pytest.mark.parametrize(
    ("cell", "hidden", "dtype"),
    [
        *((cell, 21, "float32") for cell in GATES),
        *(("lstm", hidden, "int16") for hidden in (21, 32)),
        *(("gru", 20, dtype) for dtype in ("float64", "float16", "bfloat16")),
    ],
)
def test_packing(cell: str, hidden: int, dtype: str) -> None:
    region = recurrent(cell, 3, 2, hidden, "bidirectional", weight=dtype)
    machine = machine_for("avx2")
    config = TEMPLATE.default_config(region, machine)
    packing, isa = TEMPLATE.packing, machine.isa
    assert packing is not None
    array = recurrent_inputs(region)[1]
    packed = packing(region, config, isa, 1).pack(array)
    assert packed.shape == packing(region, config, isa, 1).shape
    weight = relax.Var("w", relax.TensorType(array.shape, dtype))
    np.testing.assert_array_equal(
        evaluated(weight, packing(region, config, isa, 1).pack(weight), array), packed
    )
    flat = relax.Var("w", relax.TensorType(packed.shape, str(packed.dtype)))
    np.testing.assert_array_equal(
        evaluated(flat, packing(region, config, isa, 1).unpack(flat), packed), array
    )


def evaluated(var: relax.Var, expr: relax.Expr, array: np.ndarray) -> np.ndarray:
    builder = relax.BlockBuilder()
    with builder.function("main", [var]):
        builder.emit_func_output(builder.emit(expr))
    vm = relax.VirtualMachine(tvm.compile(builder.get(), "llvm"), tvm.cpu())
    return array_of(vm["main"](tensor_of(array)))


@pytest.mark.parametrize("cell", GATES)
def test_the_plain_function_means_the_same(cell: str) -> None:
    """TVM's own passes compile it, with dynamic sizes."""
    region = recurrent(cell, LENGTH, BATCH, 6, "bidirectional", all_given(cell), clip=0.7)
    function = plain_function(region)
    assert json.loads(function.attrs[RECURRENT_ATTRS]) == dict(region.attrs)
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    code = tvm.compile(module, "llvm")["main"]
    for steps, batch in ((3, 2), (0, 2)):
        known = at_sizes(region, {"length": steps, "batch": batch})
        arrays = recurrent_inputs(known)
        output = tvm.runtime.empty(known.output.shape, "float32")
        code(*map(tvm.runtime.tensor, arrays), output)
        check(known, output.numpy(), arrays)


def test_the_plain_function_of_8_bits() -> None:
    region = recurrent("lstm", 3, 2, 6, "bidirectional", weight="int8")
    arrays = recurrent_inputs(region)
    module = tvm.IRModule({"main": plain_function(region).with_attr("global_symbol", "main")})
    output = tvm.runtime.empty(region.output.shape, "float32")
    tvm.compile(module, "llvm")["main"](*map(tvm.runtime.tensor, arrays), output)
    check_steps(region, arrays, output.numpy())


def test_what_is_refused() -> None:
    region, isa = recurrent("lstm", 3, 2, 8), machine_for(NATIVE).isa
    x, weight = region.inputs
    computed = region.replace(inputs=(x, Tensor(weight.shape, "int8")))
    assert TEMPLATE.reject(computed, isa) == "a weight of bytes that is not known before a run"
    double = region.replace(output=Tensor(region.output.shape, "float64"))
    assert TEMPLATE.reject(double, isa) == "a tensor of type float64"
    gru = recurrent("gru", 3, 2, 8, weight="int8")
    assert TEMPLATE.reject(gru, isa) == "a weight of 8 bits of gru"
    other = region.replace(output=x)
    assert (TEMPLATE.reject(other, isa) or "").startswith("shapes ")
    config = TEMPLATE.default_config(region, machine_for(NATIVE))
    for changed in ({"rows": 0}, {"units": 9}, {"threads": 0}):
        wrong = RecurrentConfig(**{**config.to_dict(), **changed})
        with pytest.raises(ConfigError, match=next(iter(changed))):
            TEMPLATE.build(region, wrong, isa)


def test_a_kernel_has_products_of_whole_cells() -> None:
    """A tile has all four gates of some hidden values."""
    region, machine = recurrent("lstm", 9, 1, 256), machine_for("avx2")
    config = TEMPLATE.default_config(region, machine)
    assert config.kernel.startswith("avx2_f32") and config.units * 4 * config.rows <= 12
    columns = 32 * config.units
    assert TEMPLATE.kernel_name(region, config, machine.isa) == f"avx2_f32_{config.rows}x{columns}"
    double = recurrent("lstm", 9, 1, 256, weight="float64")
    assert TEMPLATE.kernel_name(double, config, machine.isa).startswith("avx2_f64_")


def test_tiles_of_a_dynamic_batch_are_a_power_of_two_high() -> None:
    """8 rows are 4 and 4, not 6 and 2; heights of a static batch, and low tiles, stay."""
    machine = machine_for("avx512_vnni")
    for batch, rows in ((BATCH, 4), (6, 6)):
        region = recurrent("lstm", 9, batch, 256, weight="int8")
        assert TEMPLATE.default_config(region, machine).rows == rows
    found = TEMPLATE.space(recurrent("lstm", 9, BATCH, 256), machine_for("avx512"))
    assert {(each.rows, each.units) for each in found} >= {(4, 1), (3, 2), (1, 3)}
    few = TEMPLATE.space(recurrent("lstm", 9, BATCH, 256), machine_for("avx2"))
    assert max(each.rows for each in few) == 3

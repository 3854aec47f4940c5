"""Elementwise regions: quantising and dequantising bit for bit, any shape, operands, threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import bfloat16
from tvm.ir.instrument import pass_instrument

from microkernels.base.errors import ConfigError
from microkernels.isa import isa_named
from tests.examples import examples
from tests.guard import guarded
from tests.onnx_reference.arithmetic import quantize, quantized
from tests.tir_schedules import run_region
from tests.tir_schedules.run_region import ISAS, MCPU, machine_for, run
from tir_schedules.core.extents import collapsed
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.rows.elementwise import ELEMENTWISE, ElementwiseConfig

EPS = np.finfo(np.float32).eps
DTYPES = ("uint8", "int8")
Steps = list[EpilogueOp]


def constant(value: float) -> EpilogueOp:
    return EpilogueOp("constant", value=value)


def region_of(
    shape: tuple[int, ...], x: str, y: str, steps: Steps, operands: tuple[Tensor, ...] = ()
) -> Region:
    return Region(
        op="elementwise",
        inputs=(Tensor(shape, x),),
        output=Tensor(shape, y),
        operands=operands,
        epilogue=tuple(steps),
    )


def quantize_region(shape: tuple[int, ...], scale: float, zero_point: int, dtype: str) -> Region:
    steps = [constant(scale), constant(zero_point), EpilogueOp("quantize", (0, 1, 2), dtype=dtype)]
    return region_of(shape, "float32", dtype, steps)


def items_region(shape: tuple[int, ...], dtype: str) -> Region:
    """Scale and zero point are the two numbers of an operand."""
    steps = [EpilogueOp("item", (1,), value=0), EpilogueOp("item", (1,), value=1)]
    steps.append(EpilogueOp("quantize", (0, 2, 3), dtype=dtype))
    return region_of(shape, "float32", dtype, steps, (Tensor((2,), "float32"),))


def compiled(region: Region, isa: str) -> Callable[..., np.ndarray]:
    """The kernel as a function of arrays, for many calls."""
    machine = machine_for(isa)
    function = ELEMENTWISE.build(region, ELEMENTWISE.default_config(region, machine), machine.isa)
    kernel = run_region.compiled(function, isa)
    output = guarded(np.zeros(region.output.shape, region.output.dtype))

    def call(*arrays: np.ndarray) -> np.ndarray:
        output[...] = 99
        kernel(*(guarded(array) for array in arrays), output)
        return output.copy()

    return call


def awkward(scale: float, zero_point: int, size: int, seed: int = 0) -> np.ndarray:
    """f32 numbers at and next to ties and ends of saturation, far away, and ordinary ones."""
    rng = np.random.default_rng(seed)
    ties = ((rng.integers(-260, 260, size) + 0.5) * scale).astype(np.float32)
    with np.errstate(over="ignore"):
        values = [
            ties,
            np.nextafter(ties, np.float32(np.inf)),
            np.nextafter(ties, np.float32(-np.inf)),
            (rng.standard_normal(size) * 100 * scale).astype(np.float32),
            np.array([0, -0.0, np.inf, -np.inf, 3e38, -3e38, 1e-45, -1e-45], np.float32),
            ((np.array([-1, 0, 1, 254, 255, 256]) - zero_point) * scale).astype(np.float32),
        ]
    return rng.permutation(np.concatenate(values))[:size]


def sizes(isa: str) -> list[int]:
    lanes = machine_for(isa).isa.f32_lanes
    return sorted({1, max(1, lanes - 1), lanes, lanes + 1, 4 * lanes - 1, 4 * lanes + 1, 9 * lanes})


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_sizes_around_vectors_between_guard_pages(isa: str, dtype: str) -> None:
    for size in sizes(isa):
        x = awkward(0.037, 13, size)
        wanted = quantize(x, 0.037, np.array(13, dtype))
        for at_end in (False, True):
            region = quantize_region((size,), 0.037, 13, dtype)
            assert (run(region, [x], isa, at_end=at_end) == wanted).all()
            back = region_of(
                (size,),
                dtype,
                "float32",
                [constant(0.037), constant(13), EpilogueOp("dequantize", (0, 1, 2))],
            )
            real = quantized(wanted, 0.037, np.array(13, dtype)).real()
            assert (run(back, [wanted], isa, at_end=at_end) == real).all()


scales = st.floats(2.0**-40, 2.0**20, width=32)


@given(scales, st.integers(-128, 127), st.sampled_from(DTYPES))
@examples(30)
def test_scales_known_at_compile_time(scale: float, zero_point: int, dtype: str) -> None:
    zero = np.array(zero_point + 128 if dtype == "uint8" else zero_point, dtype)
    x = awkward(scale, int(zero), 1500)
    result = run(quantize_region(x.shape, scale, int(zero), dtype), [x], ISAS[-1])
    assert (result == quantize(x, scale, zero)).all()


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_a_thousand_scales_known_at_run_time(isa: str, dtype: str) -> None:
    kernel = compiled(items_region((131,), dtype), isa)
    rng = np.random.default_rng(5)
    limits = np.iinfo(dtype)
    for seed in range(1000):
        scale = np.float32(rng.uniform(0.5, 1) * 2.0 ** rng.integers(-40, 20))
        zero = rng.integers(limits.min, limits.max + 1, dtype=dtype)
        x = awkward(float(scale), int(zero), 131, seed)
        result = kernel(x, np.array([scale, zero], np.float32))
        assert (result == quantize(x, scale, zero)).all(), (seed, scale, zero)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_one_number_alone_is_stored(isa: str, dtype: str) -> None:
    """The output ends at an unmapped page: a store of more than its byte would crash."""
    numbers = np.array([0.5, 3], np.float32)
    for shape in ((1,), (2,), (3, 1)):
        x = np.full(shape, 7.25, np.float32)
        assert (run(items_region(shape, dtype), [x, numbers], isa) == 14 + 3).all()


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_a_scale_for_every_column(isa: str, dtype: str) -> None:
    rows, columns = 24, 67
    operands = (Tensor((columns,), "float32"), Tensor((columns,), dtype))
    there = region_of(
        (rows, columns),
        "float32",
        dtype,
        [EpilogueOp("quantize", (0, 1, 2), dtype=dtype)],
        operands,
    )
    back = region_of(
        (rows, columns), dtype, "float32", [EpilogueOp("dequantize", (0, 1, 2))], operands
    )
    kernel, inverse = compiled(there, isa), compiled(back, isa)
    rng = np.random.default_rng(6)
    limits = np.iinfo(dtype)
    for seed in range(30):
        scale = (rng.uniform(0.5, 1, columns) * 2.0 ** rng.integers(-30, 9, columns)).astype("f4")
        zero = rng.integers(limits.min, limits.max + 1, columns, dtype=dtype)
        parts = [awkward(s, z, rows, seed) for s, z in zip(scale, zero, strict=True)]
        x = np.ascontiguousarray(np.stack(parts, axis=1))
        result = kernel(x, scale, zero)
        assert (result == quantize(x, scale, zero, 1)).all(), seed
        assert (inverse(result, scale, zero) == quantized(result, scale, zero, 1).real()).all()


def qlinear_add(shape: tuple[int, ...], a: str, b: str, y: str) -> Region:
    """quantize(dequantize(a) + dequantize(b)); all six parameters are operands."""
    scalar, integer = Tensor((), "float32"), Tensor((), "int32")
    steps = [
        EpilogueOp("dequantize", (0, 2, 3)),
        EpilogueOp("dequantize", (1, 4, 5)),
        EpilogueOp("add", (8, 9)),
        EpilogueOp("quantize", (10, 6, 7), dtype=y),
    ]
    operands = (Tensor(shape, b), scalar, integer, scalar, integer, scalar, integer)
    return region_of(shape, a, y, steps, operands)


@pytest.mark.parametrize("isa", ISAS)
def test_sums_of_quantised_tensors_round_like_single_operators(isa: str) -> None:
    rng = np.random.default_rng(7)
    kernel = compiled(qlinear_add((3, 501), "uint8", "int8", "uint8"), isa)
    for _ in range(300):
        a = rng.integers(0, 256, (3, 501), dtype=np.uint8)
        b = rng.integers(-128, 128, (3, 501), dtype=np.int8)
        # Scales in simple ratios make many sums ties, which one more bit decides.
        base = np.float32(rng.uniform(0.001, 0.1))
        scale = [np.float32(base * factor) for factor in rng.choice([0.5, 1, 1.5, 2], 3)]
        zero = [rng.integers(0, 256), rng.integers(-128, 128), rng.integers(0, 256)]
        numbers = [np.array(v) for s, z in zip(scale, zero, strict=True) for v in (s, np.int32(z))]
        real = quantized(a, scale[0], np.uint8(zero[0])).real()
        real = real + quantized(b, scale[1], np.int8(zero[1])).real()
        assert (kernel(a, b, *numbers) == quantize(real, scale[2], np.uint8(zero[2]))).all()


def test_leaky_relu_of_a_quantised_tensor() -> None:
    steps = [constant(0.02), constant(100), EpilogueOp("dequantize", (0, 1, 2)), constant(0.0)]
    steps += [EpilogueOp("minimum", (3, 4)), constant(0.1), EpilogueOp("multiply", (5, 6))]
    steps += [
        EpilogueOp("maximum", (3, 4)),
        EpilogueOp("add", (7, 8)),
        constant(0.013),
        constant(7),
    ]
    steps += [EpilogueOp("quantize", (9, 10, 11), dtype="int8")]
    x = np.arange(256, dtype=np.uint8)
    real = quantized(x, 0.02, np.uint8(100)).real()
    real = np.where(real < 0, real * np.float32(0.1), real)
    wanted = quantize(real, 0.013, np.int8(7))
    for isa in ISAS:
        assert (run(region_of((256,), "uint8", "int8", steps), [x], isa) == wanted).all()


@pytest.mark.parametrize("isa", ISAS)
def test_integer_accumulators_become_real_numbers(isa: str) -> None:
    rng = np.random.default_rng(8)
    x = rng.integers(-(2**31), 2**31, (5, 37)).astype(np.int32)
    scale = rng.uniform(0.001, 1, 37).astype(np.float32)
    steps = [EpilogueOp("cast", (0,)), EpilogueOp("multiply", (2, 1))]
    region = region_of((5, 37), "int32", "float32", steps, (Tensor((37,), "float32"),))
    assert (run(region, [x, scale], isa) == x.astype(np.float32) * scale).all()


@pytest.mark.parametrize("isa", ISAS)
def test_bfloat16_in_and_out(isa: str) -> None:
    rng = np.random.default_rng(9)
    machine = machine_for(isa)
    for size in (1, 5, 16, 37, 200):
        steps = [EpilogueOp("add", (0, 1)), EpilogueOp("cast", (2,), dtype="bfloat16")]
        operands = (Tensor((size,), "float32"),)
        region = region_of((size,), "bfloat16", "bfloat16", steps, operands)
        config = ELEMENTWISE.default_config(region, machine)
        function = ELEMENTWISE.build(region, config, machine.isa)
        kernel = run_region.compiled(function, isa)
        x = rng.standard_normal(size).astype(bfloat16)
        y = rng.standard_normal(size).astype(np.float32)
        result = tvm.runtime.empty((size,), "bfloat16")
        kernel(tvm.runtime.tensor(x), tvm.runtime.tensor(y), result)
        assert (result.numpy() == (x.astype(np.float32) + y).astype(bfloat16)).all()


SHAPES = (
    (),
    (1,),
    (35,),
    (3, 1),
    (3, 35),
    (1, 1, 35),
    (4, 1, 1),
    (4, 1, 35),
    (1, 3, 1),
    (4, 3, 35),
)


@pytest.mark.parametrize("threads", [1, 3])
def test_operands_of_every_shape(threads: int) -> None:
    rng = np.random.default_rng(10)
    for shape in SHAPES:
        region = region_of(
            (4, 3, 35),
            "float32",
            "float32",
            [EpilogueOp("multiply", (0, 1)), EpilogueOp("add", (3, 2))],
            (Tensor(shape, "float32"), Tensor((3, 1), "float32")),
        )
        x = rng.standard_normal((4, 3, 35)).astype(np.float32)
        y, z = (rng.standard_normal(s).astype(np.float32) for s in (shape, (3, 1)))
        config = ElementwiseConfig(unroll=2, threads=threads)
        result = run(region, [x, y, z], ISAS[-1], config=config)
        wanted = x.astype(np.float64) * y + z
        # A product and a sum, each rounded by eps / 2 of values no larger than these.
        assert (np.abs(result - wanted) <= EPS * (np.abs(x * y) + np.abs(z))).all()


@given(
    st.lists(st.integers(1, 7), min_size=0, max_size=3),
    st.integers(1, 200),
    st.integers(1, 9),
    st.integers(1, 5),
    st.booleans(),
)
@examples(25)
def test_random_shapes_configurations_and_threads(
    lead: list[int], last: int, unroll: int, threads: int, at_end: bool
) -> None:
    shape = (*lead, last)
    region = qlinear_add(shape, "int8", "uint8", "int8")
    # The last operand but one broadcasts along columns, so that rows stay apart.
    wide = Tensor((last,), "float32")
    region = region.replace(operands=(*region.operands[:5], wide, region.operands[6]))
    rng = np.random.default_rng(11)
    a = rng.integers(-128, 128, shape).astype(np.int8)
    b = rng.integers(0, 256, shape).astype(np.uint8)
    scale = rng.uniform(0.01, 0.2, last).astype(np.float32)
    first = [np.array(0.02, np.float32), np.array(-3, np.int32)]
    second = [np.array(0.01, np.float32), np.array(128, np.int32)]
    arrays: list[np.ndarray] = [a, b, *first, *second, scale, np.array(5, np.int32)]
    config = ElementwiseConfig(unroll=unroll, threads=threads)
    result = run(region, arrays, ISAS[-1], config=config, at_end=at_end)
    real = quantized(a, 0.02, np.int8(-3)).real() + quantized(b, 0.01, np.uint8(128)).real()
    zero = np.full(last, 5, np.int8)
    assert (result == quantize(real, scale, zero, real.ndim - 1)).all()


@pytest.mark.parametrize(
    ("output", "shapes", "flat", "wanted"),
    [
        ((2, 128, 384), [(2, 128, 384), ()], (98304,), [(98304,), ()]),
        ((2, 128, 384), [(384,)], (256, 384), [(1, 384)]),
        ((1, 64, 56, 56), [(64, 1, 1)], (64, 3136), [(64, 1)]),
        ((4, 1, 5), [(4, 1, 5), (1, 1, 1)], (20,), [(20,), ()]),
        ((2, 3, 4, 5), [(3, 1, 5)], (2, 3, 4, 5), [(1, 3, 1, 5)]),
        ((2, 3, 4, 5), [(2, 3, 1, 1), (4, 5)], (6, 20), [(6, 1), (1, 20)]),
        ((1, 1), [(1, 1)], (1,), [()]),
        ((), [()], (1,), [()]),
    ],
)
def test_collapsed_shapes(
    output: tuple[int, ...],
    shapes: list[tuple[int, ...]],
    flat: tuple[int, ...],
    wanted: list[tuple[int, ...]],
) -> None:
    operands = tuple(Tensor(shape, "float32") for shape in shapes)
    seen = collapsed(region_of(output, "float32", "float32", [], operands))
    assert seen.output.shape == seen.inputs[0].shape == flat
    assert [operand.shape for operand in seen.operands] == wanted


def test_operands_of_which_items_are_read_keep_their_shape() -> None:
    assert collapsed(items_region((4, 2), "uint8")).operands[0].shape == (2,)


def test_what_is_rejected_is_told_why() -> None:
    isa = isa_named("avx512")
    region = quantize_region((2, 3), 0.1, 0, "uint8")

    def reason(**changes: object) -> str:
        return ELEMENTWISE.reject(region.replace(**changes), isa) or ""

    assert ELEMENTWISE.reject(region, isa) is None
    assert "type float64" in reason(inputs=(Tensor((2, 3), "float64"),))
    assert "is 0" in reason(inputs=(Tensor((0, 3), "float32"),))
    assert "output of shape (2, 3)" in reason(inputs=(Tensor((3,), "float32"),))
    assert "does not broadcast" in reason(operands=(Tensor((2,), "float32"),))
    assert "2 inputs" in reason(inputs=region.inputs * 2)


@pytest.mark.parametrize("fields", [{"unroll": 0}, {"unroll": 33}, {"unroll": 1, "threads": 0}])
def test_illegal_configurations(fields: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        ELEMENTWISE.build(
            quantize_region((64,), 0.1, 0, "uint8"),
            ElementwiseConfig(**fields),
            isa_named("avx512"),
        )


def test_every_configuration_of_the_space() -> None:
    region = quantize_region((3, 75), 0.05, 9, "uint8")
    configs = list(ELEMENTWISE.space(region, machine_for(ISAS[-1])))
    assert len(set(configs)) == len(configs) > 3
    x = awkward(0.05, 9, 225).reshape(3, 75)
    for config in configs:
        result = run(region, [x], ISAS[-1], config=config)
        assert (result == quantize(x, 0.05, np.uint8(9))).all()


@pytest.mark.parametrize(("isa", "register"), [("avx2", "ymm"), ("avx512", "zmm")])
def test_code_is_vector_code_and_rounds_products(isa: str, register: str) -> None:
    region = qlinear_add((4, 1003), "uint8", "int8", "uint8")
    config = ELEMENTWISE.default_config(region, machine_for(isa))
    function = ELEMENTWISE.build(region, config, isa_named(isa))
    target = tvm.target.Target({"kind": "llvm", "mcpu": MCPU[isa]})
    code = tvm.compile(function.with_attr("global_symbol", "kernel"), target=target)
    text = code.mod.inspect_source("asm")
    assert f"%{register}" in text
    assert "vmulps" in text
    assert "vfmadd" not in text  # a product without its own rounding gives other integers at ties
    assert "TVMBackendAllocWorkspace" not in text


def test_lowering_does_not_inline_without_bounds() -> None:
    scalar, full = Tensor((), "float32"), Tensor((5, 75), "uint8")
    steps = [constant(0.02), constant(3), EpilogueOp("dequantize", (0, 3, 4))]
    steps += [
        EpilogueOp("dequantize", (1, 2, 4)),
        EpilogueOp("add", (5, 6)),
        EpilogueOp("gelu", (7,)),
    ]
    steps += [EpilogueOp("tanh", (8,)), EpilogueOp("quantize", (9, 3, 4), dtype="uint8")]
    region = region_of((5, 75), "uint8", "uint8", steps, (full, scalar))
    function = ELEMENTWISE.build(region, ElementwiseConfig(unroll=1), isa_named("avx512"))
    sizes: list[int] = []

    @pass_instrument
    class Sizes:
        def run_after_pass(self, mod: tvm.IRModule, info: object) -> None:
            sizes.append(len(mod.script()))

    with tvm.transform.PassContext(instruments=[Sizes()]):
        target = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512"})
        tvm.compile(function.with_attr("global_symbol", "kernel"), target=target)
    # One inlined operator is some 13 times as long; all of them, 1500 times.
    assert max(sizes) < 30 * len(function.script())


def test_names_threads_and_counts() -> None:
    machine = machine_for("avx512", threads=4)
    small, large = (quantize_region(shape, 0.1, 0, "uint8") for shape in ((64,), (4096, 1024)))
    assert ELEMENTWISE.default_config(small, machine).threads == 1
    config = ELEMENTWISE.default_config(large, machine)
    assert config.threads == 4
    assert ELEMENTWISE.kernel_name(large, config, machine.isa) == "avx512_elementwise"
    assert ELEMENTWISE.flops(small) == 64
    assert (ELEMENTWISE.reference(small, [np.ones(64, np.float32)]) == 1).all()

"""The weight_only_matmul template: bits, blocks, zero points, tails, both ways, every ISA."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from microkernels.base.errors import ConfigError
from microkernels.isa import isa_named
from tests.examples import examples
from tests.tir_schedules.dynamic_regions import BATCH, LENGTH, DynamicKernel, at_sizes
from tests.tir_schedules.run_region import (
    ISAS,
    MCPU,
    bias_relu,
    expected,
    highest_native,
    machine_for,
    run,
)
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.product.weight_only_config import WeightOnlyConfig
from tir_schedules.product.weight_only_matmul import WEIGHT_ONLY_MATMUL, dequantised

BEST = highest_native(ISAS)


def region_of(
    lead: tuple[int, ...],
    k: int,
    n: int,
    bits: int = 4,
    block: int = 32,
    dtype: str = "uint8",
    zero: float | str = 0.0,
    rows: int | None = None,
    scales: str = "",
    **fields: Any,
) -> Region:
    """A region; `zero` is a number, or "blocks" for one zero point a block and column; `scales` is
    the type that holds them, if it is not float32."""
    rows = rows or k
    per_block = Tensor((-(-rows // block), 1, n), "float32", True)
    zeros = (per_block,) if zero == "blocks" else ()
    attrs = {"bits": bits, "block": block} | ({} if zero == "blocks" else {"zero_point": zero})
    attrs |= {"scales": scales} if scales else {}
    return Region(
        op="weight_only_matmul",
        inputs=(Tensor((*lead, k), "float32"), Tensor((rows, n), dtype, True), per_block, *zeros),
        output=fields.pop("output", Tensor((*lead, n), "float32")),
        attrs=attrs,
        **fields,
    )


def arrays_of(region: Region, seed: int = 0) -> list[np.ndarray]:
    """Weights over the whole range of their type, positive scales, zero points in the range."""
    rng = np.random.default_rng(seed)
    limits = np.iinfo(region.inputs[1].dtype)
    arrays = [
        rng.standard_normal(region.inputs[0].shape).astype(region.inputs[0].dtype),
        rng.integers(limits.min, limits.max + 1, region.inputs[1].shape, limits.dtype),
        rng.uniform(0.5, 2.0, region.inputs[2].shape).astype(np.float32),
    ]
    if region.attrs.get("scales") == "float16":
        arrays[2] = arrays[2].astype(np.float16).astype(np.float32)
    if len(region.inputs) > 3:
        shape, most = region.inputs[3].shape, 2 ** int(region.attrs["bits"])
        arrays.append(rng.integers(0, most, shape).astype(np.float32))
    return arrays + [
        np.asarray(rng.standard_normal(t.shape)).astype(t.dtype) for t in region.operands
    ]


def check(region: Region, isa: str = BEST, **options: Any) -> None:
    """Runs the region between guard pages and compares it with its definition.

    (K + 4) * eps * |A| |W| bounds a f32 sum of K products in any order, block by block or not
    (Higham, section 3.1), with three roundings of W; 4 eps of the result are for the epilogue.
    """
    arrays = arrays_of(region)
    check_result(region, arrays, run(region, arrays, isa, **options))


def check_result(region: Region, arrays: list[np.ndarray], result: np.ndarray) -> None:
    """Compares what a kernel computed, as `check` says."""
    wanted = expected(region, arrays)
    eps = np.finfo(np.float32).eps
    weight = dequantised(region, arrays[: len(region.inputs)])
    magnitudes = np.abs(arrays[0].astype(np.float64)) @ np.abs(weight)
    k = region.inputs[0].shape[-1]
    assert (np.abs(result - wanted) <= (k + 4) * eps * magnitudes + 4 * eps * np.abs(wanted)).all()


def config_for(region: Region, isa: str, staged: bool, **fields: int) -> WeightOnlyConfig:
    """A configuration of that way, made from the default one."""
    default = WEIGHT_ONLY_MATMUL.default_config(region, machine_for(isa))
    level = isa_named(isa).vector_level
    kernel = {"scalar": "scalar_f32_4x4", "avx2": "avx2_f32_4x24", "avx512": "avx512_f32_6x64"}
    chosen = {"kernel": kernel[level], "rows": 3, "vectors": 2, "staged": staged, **fields}
    return WeightOnlyConfig(**{**default.to_dict(), **chosen})


FORMATS = [
    (2, "uint8", 2.0),
    (2, "int8", 0.0),
    (4, "uint8", 8.0),
    (4, "uint8", "blocks"),
    (4, "int8", 0.0),
    (8, "uint8", 128.0),
    (8, "uint8", 3.0),
    (8, "uint8", "blocks"),
    (8, "int8", 0.0),
]


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("bits", "dtype", "zero"), FORMATS, ids=str)
def test_formats(isa: str, bits: int, dtype: str, zero: float | str) -> None:
    for m, k, n, block in [(1, 96, 35, 32), (7, 50, 48, 50)]:
        region = region_of((m,), k, n, bits, block, dtype, zero)
        for staged in (False, True):
            check(region, isa, config=config_for(region, isa, staged), at_end=staged)


@pytest.mark.parametrize("isa", ISAS)
def test_scales_of_16_bits(isa: str) -> None:
    """Vectors of 512 bits read float16, others float32; with float32 the result is the same."""
    packing = WEIGHT_ONLY_MATMUL.packing
    assert packing is not None
    for m, zero in [(1, 8.0), (5, "blocks")]:
        region = region_of((m,), 96, 35, zero=zero, scales="float16")
        arrays = arrays_of(region)
        for staged in (False, True):
            config = config_for(region, isa, staged)
            result = run(region, arrays, isa, config=config, at_end=staged)
            check_result(region, arrays, result)
            plain = region_of((m,), 96, 35, zero=zero)
            np.testing.assert_array_equal(result, run(plain, arrays, isa, config=config))
            packed = packing(region, config, isa_named(isa), 2).pack(arrays[2])
            wide = isa_named(isa).vector_level == "avx512"
            assert packed.dtype == ("float16" if wide else "float32")


@pytest.mark.sampled
@pytest.mark.parametrize("block", [16, 32, 64, 128, 200])
@pytest.mark.parametrize("bits", [4, 8])
def test_blocks_and_a_short_last_one(bits: int, block: int) -> None:
    for m in (1, 4, 33):
        check(region_of((m,), 200, 70, bits, block, zero="blocks"))


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5])
def test_few_rows(m: int, at_end: bool, isa: str) -> None:
    for n in (1, 15, 16, 17, 257):
        check(region_of((m,), 33, n), isa, at_end=at_end)


@given(
    st.integers(1, 40),
    st.integers(1, 140),
    st.integers(1, 90),
    st.sampled_from([2, 4, 8]),
    st.sampled_from([16, 32, 48, 1000]),
    st.integers(1, 3),
    st.booleans(),
)
@examples(15)
def test_random_shapes_with_bias_and_relu(
    m: int, n: int, k: int, bits: int, block: int, threads: int, at_end: bool
) -> None:
    bias: dict[str, Any] = {"operands": (Tensor((n,), "float32"),), "epilogue": bias_relu()}
    region = region_of((m,), k, n, bits, min(block, k), zero=1.0, **bias)
    default = WEIGHT_ONLY_MATMUL.default_config(region, machine_for(BEST, threads))
    split = {**default.to_dict(), "threads_m": threads, "threads_n": 2}
    check(region, at_end=at_end)
    check(region, config=WeightOnlyConfig(**split), at_end=at_end)


@given(st.data())
@examples(12)
def test_every_block_size_gives_the_same_result(data: st.DataObject) -> None:
    zero = "blocks" if data.draw(st.booleans()) else 8.0
    region = region_of((13,), 100, 50, zero=zero)
    config = config_for(
        region,
        BEST,
        staged=data.draw(st.booleans()),
        rows=data.draw(st.integers(1, 4)),
        vectors=data.draw(st.integers(1, 4 if BEST != "avx2" else 3)),
        m_block=data.draw(st.integers(1, 15)),
        k_block=data.draw(st.integers(1, 110)),
        threads_m=data.draw(st.integers(1, 5)),
        threads_n=data.draw(st.integers(1, 8)),
        threads_k=data.draw(st.integers(1, 4)),
    )
    check(region, config=config)


def test_rows_of_padding_are_left_out() -> None:
    for staged in (False, True):
        region = region_of((3,), 40, 20, rows=64, zero="blocks")
        check(region, config=config_for(region, BEST, staged))


@pytest.mark.sampled
@pytest.mark.parametrize(
    "shape", [(), (1,), (20,), (1, 20), (2, 20), (2, 1), (1, 1, 20), (2, 1, 1), (2, 1, 20)], ids=str
)
def test_scales_broadcast_over_blocks_and_columns(shape: tuple[int, ...]) -> None:
    region = region_of((3,), 64, 20)
    a, w, _ = region.inputs
    blocked = Tensor((2, 32, 20), "uint8", True)
    for weight in (w, blocked):
        check(region.replace(inputs=(a, weight, Tensor(shape, "float32", True))))


def test_leading_dimensions_and_other_activations() -> None:
    region = region_of((2, 3), 64, 20)
    check(region)
    half = Tensor((2, 3, 64), "float16")
    check(region.replace(inputs=(half, *region.inputs[1:])))


def test_the_result_is_cast_on_the_way_out() -> None:
    cast = (EpilogueOp("cast", (0,), dtype="int32"),)
    region = region_of((5,), 8, 20, block=8, output=Tensor((5, 20), "int32"), epilogue=cast)
    arrays = arrays_of(region)
    arrays[0], arrays[2] = np.sign(arrays[0]), np.full_like(arrays[2], 2.0)  # all sums are exact
    np.testing.assert_array_equal(run(region, arrays, BEST), expected(region, arrays))


@pytest.mark.sampled
@pytest.mark.parametrize("scales", ["", "float16"])
@pytest.mark.parametrize(("bits", "dtype", "zero"), FORMATS, ids=str)
def test_unpacking_undoes_packing(bits: int, dtype: str, zero: float | str, scales: str) -> None:
    region = region_of((3,), 90, 37, bits, 32, dtype, zero, scales=scales)
    machine = machine_for(BEST, 2)
    config = WEIGHT_ONLY_MATMUL.default_config(region, machine)
    packing = WEIGHT_ONLY_MATMUL.packing
    assert packing is not None
    arrays = arrays_of(region)
    low = -(2 ** (bits - 1)) if dtype == "int8" else 0
    arrays[1] = np.random.default_rng(1).integers(low, low + 2**bits, (90, 37), dtype)
    builder = relax.BlockBuilder()
    packed = [
        packing(region, config, machine.isa, index).pack(arrays[index])
        for index in range(1, len(region.inputs))
    ]
    parameters = [
        relax.Var(f"p{i}", relax.TensorType(array.shape, str(array.dtype)))
        for i, array in enumerate(packed)
    ]
    with builder.function("main", parameters):
        unpacked = [
            builder.emit(packing(region, config, machine.isa, index).unpack(parameter))
            for index, parameter in enumerate(parameters, 1)
        ]
        builder.emit_func_output(relax.Tuple(unpacked))
    for index, array in enumerate(packed, 1):
        assert array.shape == packing(region, config, machine.isa, index).shape
    assert packed[0].nbytes <= (90 + 15) * (37 + 15) * bits / 8
    main = relax.VirtualMachine(tvm.compile(builder.get(), "llvm"), tvm.cpu())["main"]
    for result, array in zip(main(*map(tvm.runtime.tensor, packed)), arrays[1:], strict=True):
        np.testing.assert_array_equal(result.numpy(), array)


def test_few_bits_are_looked_up_in_registers() -> None:
    region = region_of((1,), 1024, 768, zero=8.0)
    machine = machine_for("avx512")
    config = WEIGHT_ONLY_MATMUL.default_config(region, machine)
    assert not config.staged
    name = WEIGHT_ONLY_MATMUL.kernel_name(region, config, machine.isa)
    assert name == "avx512_f32_1x256+uint4"
    function = WEIGHT_ONLY_MATMUL.build(region, config, machine.isa)
    target = tvm.target.Target({"kind": "llvm", "mcpu": MCPU["avx512"]})
    module = tvm.compile(function.with_attr("global_symbol", "kernel"), target=target)
    assembly = module.mod.inspect_source("asm")
    steps = 8  # of a word; LLVM writes some permutations of floats as those of integers
    assert len(re.findall("vperm(ps|d)", assembly)) == config.vectors * steps
    assert assembly.count("vpsrld") == config.vectors * (steps - 1)
    assert assembly.count("vfmadd") == config.vectors * (steps + 1)  # and one to scale the block


def test_many_rows_expand_the_weight_once_per_block_of_rows() -> None:
    machine = machine_for("avx512")
    for m, staged in [(1, False), (16, False), (256, True)]:
        region = region_of((m,), 512, 512)
        assert WEIGHT_ONLY_MATMUL.default_config(region, machine).staged == staged


def test_space_holds_the_default_and_only_legal_configs_that_build() -> None:
    region = region_of((50,), 64, 100)
    machine = machine_for(BEST, 2)
    configs = list(WEIGHT_ONLY_MATMUL.space(region, machine))
    assert configs[0] == WEIGHT_ONLY_MATMUL.default_config(region, machine)
    assert len(set(configs)) == len(configs) > 20
    assert {config.staged for config in configs} == {False, True}
    for config in configs[:: len(configs) // 6]:
        check(region, config=config)


@pytest.mark.parametrize(("field", "value"), [("rows", 7), ("vectors", 0), ("threads_n", 0)])
def test_illegal_configs_are_refused(field: str, value: int) -> None:
    region = region_of((50,), 64, 100)
    config = WeightOnlyConfig(kernel="avx512_f32_6x64", rows=6, vectors=1, m_block=50, k_block=64)
    fields = {**config.to_dict(), field: value}
    with pytest.raises(ConfigError, match=f"{field}={value}"):
        WEIGHT_ONLY_MATMUL.build(region, WeightOnlyConfig(**fields), isa_named("avx512"))
    with pytest.raises(ConfigError, match="needs avx512"):
        WEIGHT_ONLY_MATMUL.build(region, config, isa_named("avx2"))


def test_digits_need_vnni() -> None:
    region = region_of((1,), 64, 20)
    config = config_for(region, "avx512_vnni", False, rows=1)
    assert config.digits
    assert not WEIGHT_ONLY_MATMUL.default_config(region, machine_for("avx512")).digits
    with pytest.raises(ConfigError, match="digits=True"):
        WEIGHT_ONLY_MATMUL.check(region, config, isa_named("avx512"))


def test_what_it_does_not_build_has_a_reason() -> None:
    def reason(region: Region) -> str:
        return str(WEIGHT_ONLY_MATMUL.reject(region, isa_named("avx512")))

    region = region_of((4,), 64, 8)
    a, w, s = region.inputs
    assert reason(region) == "None"
    assert "3 bits" in reason(region_of((4,), 64, 8, bits=3))
    assert "multiple of 8" in reason(region_of((4,), 64, 8, block=20))
    assert reason(region_of((4,), 64, 8, bits=8, block=20)) == "None"
    assert "dimension is 0" in reason(region_of((0,), 64, 8))
    assert "32 rows" in reason(region.replace(inputs=(a, Tensor((32, 8), "uint8", True), s)))
    assert "not a constant" in reason(region.replace(inputs=(a, w, Tensor(s.shape, "float32"))))
    wrong = Tensor((3, 1, 8), "float32", True)
    assert "not broadcast" in reason(region.replace(inputs=(a, w, wrong)))
    assert "float16" in reason(region.replace(inputs=(a, w, Tensor(s.shape, "float16", True))))
    assert "weight of type int32" in reason(
        region.replace(inputs=(a, Tensor((64, 8), "int32", True), s))
    )


SIZES = [(1, 1), (1, 2), (3, 1), (2, 2), (1, 5), (2, 4), (1, 37), (3, 50), (0, 2)]


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("k", "n", "bits", "block", "zero"),
    [
        (96, 70, 4, 32, 8.0),
        (70, 33, 4, 32, "blocks"),
        (64, 200, 8, 64, 128.0),
        (48, 17, 2, 16, 0.0),
    ],
)
def test_any_number_of_rows(
    isa: str, k: int, n: int, bits: int, block: int, zero: float | str
) -> None:
    region = region_of((BATCH, LENGTH), k, n, bits, block, zero=zero)
    region = region.replace(operands=(Tensor((n,), "float32"),), epilogue=bias_relu())
    kernel = DynamicKernel(region, isa)
    for batch, length in SIZES:
        values = {"batch": batch, "length": length}
        check_dynamic(kernel, values, at_end=True)
        check_dynamic(kernel, values, at_end=False)


@pytest.mark.parametrize("threads", [2, 3])
def test_any_number_of_rows_on_threads(threads: int) -> None:
    region = region_of((LENGTH,), 64, 300, zero=8.0)
    machine = machine_for(BEST, threads).with_numbers(fork_us=0)
    config = WEIGHT_ONLY_MATMUL.default_config(region, machine)
    assert config.threads > 1
    kernel = DynamicKernel(region, BEST, threads, config)
    for length in (1, 2, 7, 100):
        check_dynamic(kernel, {"length": length})


def test_blocks_of_k_of_any_number_of_rows() -> None:
    region = region_of((LENGTH,), 96, 40, zero="blocks")
    config = WEIGHT_ONLY_MATMUL.default_config(region, machine_for(BEST))
    config = msgspec.structs.replace(config, m_block=16, k_block=40)
    kernel = DynamicKernel(region, BEST, 1, config)
    for length in (1, 4, 5, 16, 45):
        check_dynamic(kernel, {"length": length})


def check_dynamic(kernel: DynamicKernel, values: dict[str, int], at_end: bool = True) -> None:
    known = at_sizes(kernel.region, values)
    arrays = arrays_of(known)
    check_result(known, arrays, kernel.run(values, arrays, at_end))

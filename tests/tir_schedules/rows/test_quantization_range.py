"""The range of dynamic quantisation: scale and zero point, bit for bit, special values, threads."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st

from microkernels.base.errors import ConfigError
from microkernels.isa import isa_named
from tests.examples import examples
from tests.guard import guarded
from tests.onnx_reference.arithmetic import dynamic_quantize
from tests.tir_schedules.run_region import ISAS, MCPU, compiled, machine_for, run
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.rows.quantization_range import QUANTIZATION_RANGE, RangeConfig


def region_for(shape: tuple[int, ...]) -> Region:
    return Region(
        op="quantization_range", inputs=(Tensor(shape, "float32"),), output=Tensor((2,), "float32")
    )


def wanted(x: np.ndarray) -> list[float]:
    _, scale, zero_point = dynamic_quantize(x)
    return [float(scale), float(zero_point)]


@pytest.mark.parametrize("isa", ISAS)
def test_every_position_counts_between_guard_pages(isa: str) -> None:
    lanes = machine_for(isa).isa.f32_lanes
    for size in sorted({1, max(1, lanes - 1), lanes, lanes + 1, 3 * lanes - 1, 9 * lanes + 1}):
        machine = machine_for(isa)
        region = region_for((size,))
        config = QUANTIZATION_RANGE.default_config(region, machine)
        function = QUANTIZATION_RANGE.build(region, config, machine.isa)
        kernel = compiled(function, isa)
        for at_end in (False, True):
            x = guarded(np.zeros(size, np.float32), at_end)
            y = guarded(np.zeros(2, np.float32), at_end)
            for position in range(size):
                x[...] = 0
                x[position] = -1.5
                x[position - 1] = 0.25 + position
                kernel(x, y)
                assert y.tolist() == wanted(x)


@pytest.mark.parametrize("isa", ISAS)
def test_a_thousand_ranges(isa: str) -> None:
    region = region_for((5, 41))
    machine = machine_for(isa)
    config = QUANTIZATION_RANGE.default_config(region, machine)
    function = QUANTIZATION_RANGE.build(region, config, machine.isa)
    kernel = compiled(function, isa)
    rng = np.random.default_rng(1)
    result = np.zeros(2, np.float32)
    for _ in range(1000):
        shift, size = rng.uniform(-2, 2), 2.0 ** rng.integers(-120, 120)
        x = ((rng.standard_normal((5, 41)) + shift) * size).astype(np.float32)
        kernel(x, result)
        assert result.tolist() == wanted(x)
    for low in range(256):  # zero points at ties: -min / scale is one half or next to it
        x = np.full((5, 41), -(low + 0.5), np.float32)
        x[2, 3] = 255 - (low + 0.5)
        kernel(x, result)
        assert result.tolist() == wanted(x)


@given(
    st.lists(st.integers(1, 9), min_size=0, max_size=3),
    st.integers(1, 90),
    st.integers(1, 8),
    st.integers(1, 5),
    st.booleans(),
)
@examples(20)
def test_random_shapes_and_threads(
    lead: list[int], last: int, unroll: int, threads: int, at_end: bool
) -> None:
    shape = (*lead, last)
    x = np.random.default_rng(last).standard_normal(shape).astype(np.float32)
    config = RangeConfig(unroll=unroll, threads=threads)
    result = run(region_for(shape), [x], ISAS[-1], config=config, at_end=at_end)
    assert result.tolist() == wanted(x)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_least_scale(isa: str, threads: int) -> None:
    least = 2.0**-12
    region = region_for((3, 37)).replace(attrs={"least_scale": least})
    config = RangeConfig(unroll=2, threads=threads)
    x = np.random.default_rng(3).standard_normal((3, 37)).astype(np.float32)
    for factor in (1, 1e-2, -1e-3, 1e-30, 0):
        _, scale, zero_point = dynamic_quantize(x * np.float32(factor), least)
        found = run(region, [x * np.float32(factor)], isa, config=config)
        assert found.tolist() == [float(scale), float(zero_point)]
        assert found[0] >= least and (found[0] > least) == (abs(factor) >= 1e-1)


NAN, INF = np.nan, np.inf
SPECIAL = [
    ([0.0, 0.0], [1.0, 0.0]),
    ([-0.0, -0.0], [1.0, 0.0]),
    ([2.0, 3.0], [float(np.float32(3) / np.float32(255)), 0.0]),
    ([-2.0, -3.0], [float(np.float32(3) / np.float32(255)), 255.0]),
    ([NAN, 1.0], [float(np.float32(1) / np.float32(255)), 0.0]),
    ([NAN, NAN], [1.0, 0.0]),
    ([1e-45, 0.0], [1.0, 0.0]),  # the quotient is less than the smallest number
    ([3e38, 0.0], [float(np.float32(3e38) / np.float32(255)), 0.0]),
]


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("pair", "exact"), SPECIAL)
def test_special_values(pair: list[float], exact: list[float], isa: str) -> None:
    for config in (RangeConfig(unroll=2), RangeConfig(unroll=1, threads=2)):
        x = np.array(pair * 21, np.float32)
        assert run(region_for(x.shape), [x], isa, config=config).tolist() == exact


@pytest.mark.parametrize("pair", [[INF, 1.0], [-INF, 1.0], [INF, -INF], [3e38, -3e38], [NAN, INF]])
def test_infinite_ranges_have_an_infinite_scale_and_a_zero_point_in_range(
    pair: list[float],
) -> None:
    scale, zero_point = run(region_for((40,)), [np.array(pair * 20, np.float32)], ISAS[-1])
    assert scale == INF
    assert zero_point in range(256)


@pytest.mark.parametrize("isa", ISAS)
def test_range_and_quantisation_are_dynamic_quantize_linear(isa: str) -> None:
    shape = (7, 53)
    steps = (EpilogueOp("item", (1,), value=0), EpilogueOp("item", (1,), value=1))
    quantized = Region(
        op="elementwise",
        inputs=(Tensor(shape, "float32"),),
        output=Tensor(shape, "uint8"),
        operands=(Tensor((2,), "float32"),),
        epilogue=(*steps, EpilogueOp("quantize", (0, 2, 3), dtype="uint8")),
    )
    rng = np.random.default_rng(3)
    for shift in (-3.0, 0.0, 1.0, 5.0):
        x = (rng.standard_normal(shape) + shift).astype(np.float32)
        numbers = run(region_for(shape), [x], isa)
        assert (run(quantized, [x, numbers], isa) == dynamic_quantize(x)[0]).all()


def test_what_is_rejected_is_told_why() -> None:
    isa = isa_named("avx512")
    region = region_for((2, 3))

    def reason(**changes: object) -> str:
        return QUANTIZATION_RANGE.reject(region.replace(**changes), isa) or ""

    assert QUANTIZATION_RANGE.reject(region, isa) is None
    assert "int32[3]" in reason(inputs=(Tensor((3,), "int32"),))
    assert "is 0" in reason(inputs=(Tensor((0,), "float32"),))
    assert "float32[3]" in reason(output=Tensor((3,), "float32"))
    assert "epilogue" in reason(epilogue=(EpilogueOp("relu", (0,)),))
    for fields in ({"unroll": 0}, {"unroll": 1, "threads": 0}):
        with pytest.raises(ConfigError):
            QUANTIZATION_RANGE.build(region, RangeConfig(**fields), isa)


@pytest.mark.parametrize(("isa", "register"), [("avx2", "ymm"), ("avx512", "zmm")])
def test_code_is_vector_code(isa: str, register: str) -> None:
    region = region_for((128, 384))
    config = QUANTIZATION_RANGE.default_config(region, machine_for(isa))
    function = QUANTIZATION_RANGE.build(region, config, isa_named(isa))
    target = tvm.target.Target({"kind": "llvm", "mcpu": MCPU[isa]})
    library = tvm.compile(function.with_attr("global_symbol", "kernel"), target=target)
    code = library.mod.inspect_source("asm")
    for line in (f"%{register}", "vminps", "vmaxps"):
        assert line in code
    assert "TVMBackendAllocWorkspace" not in code


def test_names_threads_and_counts() -> None:
    machine = machine_for("avx512", threads=4)
    small, large = region_for((128, 384)), region_for((4096, 1024))
    template = QUANTIZATION_RANGE
    assert template.default_config(small, machine).threads == 1
    config = template.default_config(large, machine)
    assert config.threads == 4
    assert template.kernel_name(large, config, machine.isa) == "avx512_quantization_range"
    assert template.flops(small) == 2 * 128 * 384
    x = np.linspace(-1, 3, 128 * 384, dtype=np.float32).reshape(128, 384)
    assert template.reference(small, [x]).tolist() == wanted(x)
    configs = list(template.space(small, machine))
    assert len(set(configs)) == len(configs) > 3

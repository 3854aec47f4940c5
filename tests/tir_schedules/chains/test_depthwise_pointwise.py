"""A depthwise convolution and the matmul after it as one program equal both in sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from microkernels.base.errors import ConfigError
from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tests.relay_passes.graphs import run as run_relax
from tests.tir_schedules.chain_regions import f32_layer, small_integers, values
from tests.tir_schedules.pair_regions import pair
from tests.tir_schedules.run_region import BF16_ISAS, INTEGER_ISAS, ISAS, machine_for, run
from tir_schedules.chains.depthwise_pointwise import DEPTHWISE_POINTWISE
from tir_schedules.chains.depthwise_pointwise_cost import PairConfig, in_bands
from tir_schedules.chains.depthwise_pointwise_cost import check as check_config
from tir_schedules.convolution.depthwise.depthwise_conv2d import WHY_VECTORS
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.cost.amx_cost import why_vectors
from tir_schedules.product.tile_config import product_kernels
from tvm_hybrid.targets.resolve import resolve_target
from tvm_hybrid.tuning.measuring.case import Case
from tvm_hybrid.tuning.measuring.measure import Bench, Effort
from tvm_hybrid.tuning.verification.chain_bounds import chain_arguments, expected_of_chain

pytestmark = pytest.mark.turns

ALL = (1, 1, 1, 1)
ISAS_OF = {"float32": ISAS, "uint8": INTEGER_ISAS, "int8": INTEGER_ISAS, "bfloat16": BF16_ISAS}
BEST = {dtype: isas[-1] for dtype, isas in ISAS_OF.items()}
every_type = pytest.mark.parametrize("dtype", ISAS_OF)


def arrays_of(region: Region) -> list[np.ndarray]:
    """Values whose sums are exact in every order."""
    integer = region.inputs[0].dtype in ("uint8", "int8")
    return values(region) if integer else small_integers(region)


def check(region: Region, isa: str, **options: Any) -> None:
    """The kernel has the bits of the parts by numpy."""
    arrays = arrays_of(region)
    expected = DEPTHWISE_POINTWISE.reference(region, arrays)
    assert len(np.unique(expected)) > min(8, expected.size // 4)
    np.testing.assert_array_equal(run(region, arrays, isa, **options), expected)


def bands(region: Region, isa: str, lines: int, threads: int = 1) -> PairConfig:
    return in_bands(region, machine_for(isa, threads), lines, threads)


@pytest.mark.sampled
@every_type
def test_every_isa(dtype: str) -> None:
    """Two images, a lower last block of lines, tails of channels and columns."""
    region = pair((7, 5), 33, 17, padding=ALL, dtype=dtype, batch=2)
    for isa in ISAS_OF[dtype][:: 2 if dtype == "int8" else 1]:
        check(region, isa, config=bands(region, isa, 3))


@pytest.mark.sampled
@every_type
def test_bands_and_threads(dtype: str) -> None:
    """One line, lines that do not divide the image, the whole image; more threads than images."""
    region = pair((9, 6), 17, 33, (5, 3), dtype, padding=(2, 1, 2, 1), strides=(2, 1), batch=2)
    for lines, threads in ((1, 3), (5, 2)):
        config = bands(region, BEST[dtype], lines, threads)
        assert (config.lines, config.threads > 1) == (lines, True)
        check(region, BEST[dtype], config=config, threads=threads, at_end=lines > 1)


@pytest.mark.sampled
@every_type
def test_tiles_of_two_rows(dtype: str) -> None:
    region = pair((7, 6), 70, 20, padding=ALL, dtype=dtype)
    config = bands(region, BEST[dtype], 4)
    fields = config.depthwise.to_dict() | {"rows": 2, "columns": 2, "blocks": 1}
    config = PairConfig.from_dict({**config.to_dict(), "depthwise": fields})
    check(region, BEST[dtype], config=config)


def test_the_ring_goes_on_in_a_thread_and_begins_anew_in_the_next() -> None:
    """Most rows of x that a block needs were staged for the previous block of its thread."""
    region = pair((11, 4), 130, 16, (7, 3), "uint8", padding=(3, 1, 3, 1))
    for threads in (1, 3):
        config = bands(region, BEST["uint8"], 1, threads)
        assert config.depthwise.blocks > 1
        check(region, BEST["uint8"], config=config, threads=threads)


def test_one_axis_and_a_residual() -> None:
    check(pair((9,), 20, 20, (3,), padding=(1, 1)), BEST["float32"])
    for dtype, last in (("float32", "float32"), ("uint8", "float32")):
        region = pair((5, 4), 18, 18, padding=ALL, dtype=dtype, last=last, residual=True, batch=2)
        check(region, BEST[dtype], config=bands(region, BEST[dtype], 2))


def test_f32_between_integers() -> None:
    """The matmul quantises the f32 result of the convolution."""
    region = pair((5, 4), 20, 24, padding=ALL, dtype="uint8")
    first, second = region.parts
    shape = first.output.shape
    first = first.replace(output=Tensor(shape, "float32"), epilogue=first.epilogue[:-3])
    attrs = {"a_quantize": "uint8", "a_scale": 1 / 32, "a_zero_point": 3}
    second = second.replace(
        inputs=(Tensor(shape, "float32"), *second.inputs[1:]), attrs={**second.attrs, **attrs}
    )
    region = region.replace(parts=(first, second))
    check(region, BEST["uint8"], config=bands(region, BEST["uint8"], 2))


def test_tolerances_of_random_numbers() -> None:
    """Random numbers are within the parts' bounds, carried through the second part."""
    for dtype in ("float32", "bfloat16"):
        region = pair((6, 5), 33, 17, padding=ALL, dtype=dtype, last="float32")
        arrays = chain_arguments(region, 0)
        expected = expected_of_chain(region, arrays, 0)
        config = bands(region, BEST[dtype], 2)
        assert expected.difference(run(region, arrays, BEST[dtype], config=config)) is None


def test_many_configurations_agree() -> None:
    region = pair((6, 8), 40, 24, padding=ALL)
    machine = machine_for(BEST["float32"], 2)
    space = list(DEPTHWISE_POINTWISE.space(region, machine))
    assert len(set(space)) == len(space)
    assert space[0] == DEPTHWISE_POINTWISE.default_config(region, machine)
    assert {config.lines for config in space} >= {1, 2, 3, 6}
    assert {config.threads for config in space} == {1, 2}
    for config in space[:: max(1, len(space) // 6)]:
        assert PairConfig.from_dict(config.to_dict()) == config
        check(region, BEST["float32"], config=config, threads=2)


def test_the_space_is_legal() -> None:
    for dtype in ("float32", "uint8"):
        region = pair((7, 7), 70, 24, padding=ALL, dtype=dtype)
        machine = machine_for(BEST[dtype], 2)
        for config in DEPTHWISE_POINTWISE.space(region, machine):
            check_config(region, config, machine.isa)


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int8"])
def test_constants_come_back_from_their_packed_form(dtype: str) -> None:
    region = pair((5, 4), 20, 17, padding=ALL, dtype=dtype)
    isa, packing = machine_for(BEST[dtype]).isa, DEPTHWISE_POINTWISE.packing
    assert packing is not None
    config = bands(region, BEST[dtype], 2)
    for index, array in enumerate(values(region)):
        packed = packing(region, config, isa, index)
        if not region.inputs[index].constant:
            assert packed is None
            continue
        given = packed.pack(array)
        assert given.shape == packed.shape
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType(given.shape, str(given.dtype)))
        with builder.function("main", [x]):
            with builder.dataflow():
                result = builder.emit_output(packed.unpack(x))
            builder.emit_func_output(result)
        np.testing.assert_array_equal(run_relax(builder.get(), [given])[0], array)


def test_names_and_work() -> None:
    region = pair((5, 4), 20, 17, padding=ALL)
    machine = machine_for("avx2", 2)
    config = in_bands(region, machine, 2, 2)
    name = DEPTHWISE_POINTWISE.kernel_name(region, config, machine.isa)
    assert name.startswith("avx2_f32_depthwise_") and f" + {config.pointwise.kernel}" in name
    assert DEPTHWISE_POINTWISE.flops(region) == 2 * 20 * 20 * 9 + 2 * 20 * 20 * 17


def test_tiles_read_rows_of_bands() -> None:
    """With AMX the matmul's tiles read the padded block in place; only code is checked."""
    amx = Machine("sapphirerapids", isa_named("amx"))
    region = pair((8, 16), 72, 64, padding=ALL, dtype="uint8")
    second = region.parts[1]
    tile = next(k for k in product_kernels(amx.isa, "uint8", "int8") if k.by_tiles)
    config = in_bands(region, amx, 4, 1)
    fields = {"kernel": tile.name, "rows": tile.mr, "vectors": tile.vectors}
    pointwise = {**config.pointwise.to_dict(), **fields}
    config = PairConfig.from_dict({**config.to_dict(), "pointwise": pointwise})
    text = str(DEPTHWISE_POINTWISE.build(region, config, amx.isa))
    assert "(64, 128)" in text  # 72 channels in two steps of 64 bytes
    reason = why_vectors(region, config, amx)
    assert reason == f"part 0: {WHY_VECTORS}"
    (product,) = DEPTHWISE_POINTWISE.products(region, config, amx)
    assert product.part == second and product.copies == 2
    assert (product.plan.m, product.plan.n, product.plan.k) == (64, 64, 72)


def pair_with(**changes: Any) -> Region:
    return pair((5, 4), 16, 16, padding=ALL).replace(**changes)


def with_parts(first: dict[str, Any], second: dict[str, Any]) -> Region:
    region = pair_with()
    parts = tuple(
        part.replace(**fields) for part, fields in zip(region.parts, (first, second), strict=True)
    )
    return region.replace(parts=parts)


PLAIN = pair_with()
OTHER = f32_layer((1, 5, 4), 17, 16)
REJECTED = {
    "parts": (pair_with(parts=PLAIN.parts[::-1]), "parts matmul, depthwise_conv2d"),
    "none": (pair_with(parts=()), "parts missing"),
    "first": (with_parts({"output": Tensor(PLAIN.parts[0].output.shape, "int64")}, {}), "int64"),
    "second": (with_parts({}, {"output": Tensor(PLAIN.parts[1].output.shape, "int64")}), "int64"),
    "no sources": (pair_with(attrs={}), "is no source"),
    "twice": (pair_with(attrs={"sources": "i0,i1,i2;p0,i3,p0"}), "not just what"),
    "not read": (pair_with(attrs={"sources": "i0,i1,i2;i0,i3,i4"}), "not just what"),
    "shapes": (with_parts({}, {"inputs": OTHER.inputs}), "is read"),
    "unused": (pair_with(inputs=(*PLAIN.inputs, Tensor((1,), "float32"))), "input 5 is not used"),
    "shared": (pair_with(attrs={"sources": "i0,i1,i2;p0,i3,i2"}), "input 4 is not used"),
    "bias": (pair_with(attrs={"sources": "i0,i1,i0;p0,i3,i4"}), "is read"),
    "output": (pair_with(output=Tensor((5, 16), "float32")), "output"),
    "range": (with_parts({}, {"epilogue": (EpilogueOp("range", value=0.0),)}), "all pixels"),
    "variable": (with_parts({}, {"inputs": (PLAIN.parts[1].inputs[0],
                 Tensor((16, 16), "float32"))}), "not constant"),
}  # fmt: skip


@pytest.mark.parametrize("name", REJECTED)
def test_rejected_with_a_reason(name: str) -> None:
    region, reason = REJECTED[name]
    isa = machine_for(BEST["float32"]).isa
    assert DEPTHWISE_POINTWISE.reject(PLAIN, isa) is None
    assert reason in str(DEPTHWISE_POINTWISE.reject(region, isa))


@pytest.mark.parametrize(
    "changes",
    [
        {"lines": 0},
        {"lines": 6},
        {"threads": 0},
        {"depthwise": {"rows": 2}},
        {"depthwise": {"threads": 2}},
        {"pointwise": {"threads_n": 2}},
        {"pointwise": {"rows": 99}},
        {"speed": 9},
    ],
)
def test_illegal_configurations_are_refused(changes: dict[str, Any]) -> None:
    machine = machine_for(BEST["float32"])
    fields = in_bands(PLAIN, machine, 1, 1).to_dict()
    for name, value in changes.items():
        fields[name] = {**fields[name], **value} if isinstance(value, dict) else value
    with pytest.raises(ConfigError):
        config = PairConfig.from_dict(fields)
        DEPTHWISE_POINTWISE.build(PLAIN, config, machine.isa)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_the_tuner_checks_and_measures_it(dtype: str) -> None:
    region = pair((6, 5), 20, 17, padding=ALL, dtype=dtype)
    target = resolve_target(None)
    machine = Machine.from_target(target)
    bench = Bench(Case.of(region, DEPTHWISE_POINTWISE, machine, str(target)), DEPTHWISE_POINTWISE)
    config = in_bands(region, machine, 2, 1)
    measurement = bench.measure(config, None, Effort(samples=1, seconds=0.0), lambda stage: None)
    assert measurement.status == "ok", measurement.error

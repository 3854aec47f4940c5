"""3x3 convolutions of 8-bit integers by Winograd's tiles: exact for every x and weight."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.relay_passes.graphs import run as run_relax
from tests.tir_schedules.assembly_loops import assembly_of
from tests.tir_schedules.dynamic_regions import BATCH, DynamicKernel, at_sizes
from tests.tir_schedules.run_region import expected, machine_for
from tests.tir_schedules.winograd_regions import outputs, region_of
from tir_schedules.convolution.winograd.algorithm import MOST_CHANNELS, WORDS, Algorithm
from tir_schedules.convolution.winograd.conv2d_winograd import CONV2D_WINOGRAD
from tir_schedules.core.region import Region, Tensor

every_isa = pytest.mark.parametrize("isa", ["avx2", "avx512"])
KINDS = ("random", "largest", "smallest", "alternating")


def arrays_of(region: Region, kind: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    limits = np.iinfo(region.inputs[0].dtype)
    x, weight = (each.shape for each in region.inputs[:2])
    if kind == "random":
        found = [rng.integers(limits.min, limits.max + 1, x), rng.integers(-128, 128, weight)]
    elif kind == "alternating":  # signs as in B and G give the largest transforms
        places = np.indices(x)[1:3].sum(axis=0)
        found = [np.where(places % 2, limits.max, limits.min), np.full(weight, -128)]
    else:
        found = [np.full(x, limits.max), np.full(weight, 127 if kind == "largest" else -128)]
    dtypes = region.inputs[0].dtype, "int8"
    return [array.astype(dtype) for array, dtype in zip(found, dtypes, strict=True)]


def check(region: Region, isa: str, threads: int = 1) -> None:
    for kind in KINDS:
        arrays = arrays_of(region, kind)
        wanted = expected(region, arrays)
        for found in outputs(region, arrays, isa, threads=threads):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize(
    ("extents", "channels", "out_channels"),
    [((4, 4), 16, 16), ((5, 7), 32, 40), ((1, 2), 33, 17), ((9, 6), 7, 100), ((12, 12), 64, 64)],
)
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 200), ("int8", -5)])
def test_every_size_is_exact(
    isa: str, extents: tuple[int, int], channels: int, out_channels: int, dtype: str, zero: int
) -> None:
    check(region_of(extents, channels, out_channels, dtype=dtype, a_zero_point=zero), isa)


@every_isa
def test_padding_batch_and_threads(isa: str) -> None:
    same = {"dtype": "uint8", "a_zero_point": 3}
    check(region_of((6, 5), 16, 48, (0, 0, 0, 0), **same), isa)
    check(region_of((6, 5), 16, 48, (2, 1, 0, 2), batch=2, **same), isa)
    check(region_of((8, 8), 16, 64, **same), isa, threads=2)
    check(region_of((9, 8), 16, 48, (2, 3, 1, 3), dilation=(2, 3), **same), isa)


@every_isa
def test_dynamic_batch(isa: str) -> None:
    region = region_of((6, 6), 16, 32, batch=BATCH, dtype="uint8", a_zero_point=9)
    kernel = DynamicKernel(region, isa)
    for batch in (1, 3):
        sized = at_sizes(region, {"batch": batch})
        arrays = arrays_of(sized, "random")
        found = kernel.run({"batch": batch}, arrays)
        np.testing.assert_array_equal(found, expected(sized, arrays))


@every_isa
def test_words_are_multiplied(isa: str) -> None:
    region, machine = region_of((12, 12), 32, 64, dtype="uint8"), machine_for(isa)
    function = CONV2D_WINOGRAD.build(
        region, CONV2D_WINOGRAD.default_config(region, machine), machine.isa
    )
    assembly = assembly_of(function, machine.isa)
    assert "vpmaddwd" in assembly and "vpmaddubsw" not in assembly


def test_transforms_stay_within_words() -> None:
    weight = np.full((WORDS.taps, WORDS.taps, 1, 1), -128)
    transformed = Algorithm((WORDS, WORDS), "int16", "int32").transformed_weight(weight, 1)
    assert np.abs(np.abs(WORDS.g).sum(1)).max() ** 2 * 128 == np.abs(transformed).max()
    np.testing.assert_array_equal(WORDS.g_inverse @ WORDS.g, np.eye(WORDS.taps))
    assert 4 * 9 * 255 * 128 * MOST_CHANNELS < 2**31 <= 4 * 9 * 255 * 128 * (MOST_CHANNELS + 1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"b_zero_point": 1}, "zero point of the weight"),
        ({"a_zero_point": "input", "inputs": (Tensor((), "uint8"),)}, "not known"),
        ({"weight": "uint8"}, "uint8 by uint8"),
    ],
)
def test_some_integers_are_refused(changes: dict[str, object], reason: str) -> None:
    isa = machine_for("avx512").isa
    region = region_of((8, 8), 16, 16, **{"dtype": "uint8", **changes})
    assert reason in (CONV2D_WINOGRAD.reject(region, isa) or "")
    plain = region_of((8, 8), 16, 16, dtype="uint8")
    assert CONV2D_WINOGRAD.reject(plain, isa) is None
    many = region_of((8, 8), MOST_CHANNELS + 1, 16, dtype="uint8")
    assert "sums may be too large" in (CONV2D_WINOGRAD.reject(many, isa) or "")


@pytest.mark.parametrize("isa", ["scalar", "avx2_vnni", "avx512_vnni", "amx"])
def test_other_cpus_have_no_words(isa: str) -> None:
    region = region_of((8, 8), 16, 16, dtype="uint8")
    found = CONV2D_WINOGRAD.reject(region, machine_for(isa).isa)
    assert found and "one instruction" in found
    assert not Algorithm.of(region).kernels(machine_for(isa).isa)


def test_packing_is_undone() -> None:
    region, machine = region_of((8, 8), 5, 38, dtype="uint8"), machine_for("avx512", 2)
    config = CONV2D_WINOGRAD.default_config(region, machine)
    packing, weight = CONV2D_WINOGRAD.packing, arrays_of(region, "random")[1]
    assert packing is not None
    packed = packing(region, config, machine.isa, 1)
    array = packed.pack(weight)
    assert array.shape == packed.shape
    for given, wanted, body in ((array, weight, packed.unpack), (weight, array, packed.pack)):
        builder = relax.BlockBuilder()
        x = relax.Var("w", relax.TensorType(given.shape, "int8"))
        with builder.function("main", [x]):
            expr = body(x)
            builder.emit_func_output(builder.emit(expr))
        (found,) = run_relax(builder.get(), [given])
        np.testing.assert_array_equal(found, wanted)

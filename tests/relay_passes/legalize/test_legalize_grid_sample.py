"""Grid sampling in channels-last layout equals TVM's own legalisation in every mode."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax, tirx

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.legalize.resize import LEAST_CHANNELS
from relay_passes.legalize.schedule_generic import legalize_operators, schedule_leftovers
from tests.relay_passes.graphs import compiled

METHODS = {4: ("nearest", "bilinear", "bicubic"), 5: ("nearest", "bilinear")}
PADDINGS = ("zeros", "border", "reflection")
FORMS = [
    (rank, *form)
    for rank, methods in METHODS.items()
    for form in itertools.product(methods, PADDINGS, (False, True))
]
N, H, W, A, B = (tirx.Var(name, "int64") for name in "nhwab")


def module(channels: int | tirx.Var, rank: int, method: str = "bilinear", padding: str = "zeros",
           corners: bool = False, is_dynamic: bool = True) -> IRModule:  # fmt: skip
    """A module that samples an image by a grid of other extents."""
    extents, places = ([H, W], [A, B]) if is_dynamic else ([5, 7], [4, 3])
    if rank == 5:
        extents, places = [3, *extents], [2, *places]
    batch = N if is_dynamic else 2
    x, grid = (
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in (
            ("x", [batch, channels, *extents]),
            ("grid", [batch, rank - 2, *places]),
        )
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, grid]):
        with builder.dataflow():
            layout = "NCHW" if rank == 4 else "NCDHW"
            sampled = relax.op.image.grid_sample(x, grid, method, layout, padding, corners)
            result = builder.emit_output(sampled)
        builder.emit_func_output(result)
    return builder.get()


def arrays(channels: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Images, and places up to half an image outside."""
    random = np.random.default_rng(rank)
    extents, places = ((5, 7), (4, 3)) if rank == 4 else ((3, 5, 7), (2, 4, 3))
    x = random.standard_normal((2, channels, *extents)).astype(np.float32)
    grid = random.uniform(-2, 2, (2, rank - 2, *places)).astype(np.float32)
    return x, grid


def kernels(mod: IRModule, threads: int = 1) -> tuple[IRModule, list[str]]:
    noted: list = []
    machine = Machine("znver3", isa_named("avx2"), threads)
    scheduled = schedule_leftovers(machine, noted)(legalize_operators()(mod))
    return scheduled, [each.kernel for each in noted]


@pytest.mark.sampled
@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize(("rank", "method", "padding", "corners"), FORMS)
def test_samples_as_tvm_does(
    rank: int, method: str, padding: str, corners: bool, is_dynamic: bool
) -> None:
    mod = module(9, rank, method, padding, corners, is_dynamic)
    feeds = [tvm.runtime.tensor(array) for array in arrays(9, rank)]
    stock = compiled(relax.transform.LegalizeOps()(mod))(*feeds).numpy()
    ours = compiled(kernels(mod)[0])(*feeds).numpy()
    # The formulas and their order are equal; LLVM fuses some products and sums into FMA.
    np.testing.assert_allclose(ours, stock, rtol=0, atol=64 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_channels_are_vectors(is_dynamic: bool, threads: int) -> None:
    mod, names = kernels(module(16, 4, is_dynamic=is_dynamic), threads)
    assert sorted(names) == ["generic_injective", "generic_transpose", "generic_transpose"]
    feeds = [tvm.runtime.tensor(array) for array in arrays(16, 4)]
    stock = compiled(relax.transform.LegalizeOps()(module(16, 4)))(*feeds).numpy()
    got = compiled(mod)(*feeds).numpy()
    np.testing.assert_allclose(got, stock, rtol=0, atol=64 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("channels", [LEAST_CHANNELS - 1, tirx.Var("c", "int64")])
def test_few_or_dynamic_channels_stay_where_they_are(channels: int | tirx.Var) -> None:
    assert len(kernels(module(channels, 4))[1]) == 1


def test_samples_outside_take_nothing_from_the_image() -> None:
    x, grid = arrays(8, 4)
    x[:] = np.inf
    grid[:] = 3
    feeds = [tvm.runtime.tensor(array) for array in (x, grid)]
    assert (compiled(kernels(module(8, 4))[0])(*feeds).numpy() == 0).all()

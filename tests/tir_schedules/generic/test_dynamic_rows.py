"""Functions with a static last axis only: its elements are vectors."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import IRModule, ir, relax, te, tirx

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.legalize.schedule_generic import schedule_leftovers
from tests.relay_passes.graphs import compiled, module
from tir_schedules.generic.nest import NotHandledError
from tir_schedules.generic.schedule import schedule_generic, static_rows

op = relax.op
BATCH, WIDTH = (tirx.Var(name, "int64") for name in ("batch", "width"))
HALF = (WIDTH - 1) // 2 + 1
SIZES = [(1, 1), (2, 3), (3, 8), (1, 17), (0, 4)]
Shape = tuple[tirx.Expr | int, ...]

IMAGES: Shape = (BATCH, 3, HALF, 24)
FACTORS: Shape = (BATCH, 1, 1, 24)
FIRST: Shape = (BATCH, 24, 3, HALF)
WIDE: Shape = (BATCH, 3, WIDTH, 24)

CASES: dict[str, tuple[str, Callable[..., relax.Expr], tuple[Shape, ...]]] = {
    "products": ("generic_injective", op.multiply, (IMAGES, FACTORS)),
    "several": (
        "generic_injective",
        lambda x, y: op.nn.relu(op.add(op.tanh(x), op.multiply(x, y))),
        (IMAGES, FACTORS),
    ),
    "mean": ("generic_reduction", lambda x: op.mean(x, [1, 2], keepdims=True), (IMAGES,)),
    "largest": ("generic_reduction", lambda x: op.max(x, [1, 2]), (IMAGES,)),
    "pool": (
        "generic_reduction",
        lambda x: op.nn.avg_pool2d(x, (3, 2), (3, 2), layout="NHWC"),
        (WIDE,),
    ),
    "side by side": (
        "generic_injective",
        lambda x, y: op.concat([x, op.nn.relu(y)], axis=-1),
        (IMAGES, IMAGES),
    ),
    "columns behind each other": (
        "generic_injective",
        lambda x, y: op.concat([x, y], axis=2),
        (IMAGES, WIDE),
    ),
    "columns of an image": (
        "generic_injective",
        lambda x, y: op.permute_dims(op.concat([x, op.tanh(y)], axis=1), (0, 2, 3, 1)),
        (FIRST, FIRST),
    ),
    "channels first": ("generic_transpose", lambda x: op.permute_dims(x, (0, 3, 1, 2)), (IMAGES,)),
    "rows of three": ("generic_injective", op.tanh, ((BATCH, HALF, 3),)),
}


def lowered(
    body: Callable[..., relax.Expr], shapes: tuple[Shape, ...], dtype: str = "float32"
) -> IRModule:
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    # The first input gives the width; the other inputs only have halves of it.
    inputs = [((WIDTH,), "float32"), *((shape, dtype) for shape in shapes)]
    made = module(lambda _, *rest: body(*rest), *inputs)  # type: ignore[arg-type]
    return ir.transform.Sequential(passes)(made)


def functions(
    body: Callable[..., relax.Expr], shapes: tuple[Shape, ...], dtype: str = "float32"
) -> list[tirx.PrimFunc]:
    found = lowered(body, shapes, dtype).functions.values()
    return [each for each in found if isinstance(each, tirx.PrimFunc)]


def sizes_of(shape: Shape, batch: int, width: int) -> list[int]:
    values = {BATCH: batch, WIDTH: width, HALF: (width - 1) // 2 + 1}
    return [each if isinstance(each, int) else values[each] for each in shape]


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_plain_loops(name: str, threads: int, isa: str) -> None:
    _, body, shapes = CASES[name]
    plain = lowered(body, shapes)
    scheduled = schedule_leftovers(Machine("znver4", isa_named(isa), threads), [])(plain)
    run, reference = compiled(scheduled), compiled(plain)
    rng = np.random.default_rng(0)
    for batch, width in SIZES:
        arrays = [rng.standard_normal(sizes_of(each, batch, width)) for each in shapes]
        arrays = [np.zeros(width), *arrays]
        tensors = [tvm.runtime.tensor(each.astype(np.float32)) for each in arrays]
        result, wanted = run(*tensors).numpy(), reference(*tensors).numpy()
        assert result.shape == wanted.shape
        # A mean of 27 numbers in another order.
        bound = 27 * np.finfo(np.float32).eps
        np.testing.assert_allclose(result, wanted, rtol=bound, atol=bound)


# One bfloat16 fills all lanes: the initial value of maxima, an element of a row, a constant.
REPEATED: dict[str, tuple[Callable[..., relax.Expr], tuple[Shape, ...]]] = {
    "pool": (lambda x: op.nn.max_pool2d(x, (3, 2), (2, 1), layout="NHWC"), (WIDE,)),
    "repeated": (lambda x: op.repeat(x, 24, axis=3), ((BATCH, 3, HALF, 1),)),
    "constant": (lambda x: op.full_like(x, relax.const(-0.5, "float32")), (IMAGES,)),
}


@pytest.mark.parametrize("name", REPEATED)
def test_one_bfloat16_in_all_lanes(name: str) -> None:
    body, shapes = REPEATED[name]
    mod = lowered(body, shapes, "bfloat16")
    run = compiled(schedule_leftovers(Machine("znver4", isa_named("avx2"), 1), [])(mod))
    reference = compiled(lowered(body, shapes))
    rng = np.random.default_rng(0)
    for batch, width in ((2, 5), (3, 8)):
        arrays = [rng.standard_normal(sizes_of(each, batch, width)) for each in shapes]
        arrays = [each.astype(ml_dtypes.bfloat16) for each in arrays]
        first = tvm.runtime.tensor(np.zeros(width, np.float32))
        result = run(first, *map(tvm.runtime.tensor, arrays)).numpy()
        wanted = reference(first, *(tvm.runtime.tensor(x.astype(np.float32)) for x in arrays))
        np.testing.assert_array_equal(result.astype(np.float32), wanted.numpy())


def test_other_bfloat16_is_in_vectors() -> None:
    (function,) = functions(op.nn.relu, (IMAGES,), "bfloat16")
    scheduled, _ = static_rows(function, Machine("znver4", isa_named("avx2")))
    assert "T.vectorized" in scheduled.script()


@pytest.mark.parametrize("name", CASES)
def test_which_schedule_runs(name: str) -> None:
    expected, body, shapes = CASES[name]
    machine = Machine("znver4", isa_named("avx512"))
    assert [schedule_generic(each, machine)[1] for each in functions(body, shapes)] == [expected]


def test_known_sizes_are_not_its_business() -> None:
    (function,) = functions(op.tanh, ((4, 16),))
    with pytest.raises(NotHandledError, match="all sizes are static"):
        static_rows(function, Machine("znver4", isa_named("avx2")))


def test_elements_that_lie_apart_are_left() -> None:
    def turned(x: te.Tensor) -> te.Tensor:
        return te.compute((WIDTH, 16), lambda i, j: x[i, 15 - j], name="turned")

    x = te.placeholder((WIDTH, 16), "float32", "x")
    function = te.create_prim_func([x, turned(x)])
    scheduled, name = static_rows(function, Machine("znver4", isa_named("avx2")))
    assert name == "generic_injective"
    assert "vectorized" in str(scheduled)

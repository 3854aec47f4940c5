"""Operators with dynamic sizes: the static schedules compute each item."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import IRModule, ir, relax, te, tirx

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.legalize.schedule_generic import schedule_leftovers
from tests.relay_passes.graphs import compiled, module
from tir_schedules.generic.nest import NotHandledError
from tir_schedules.generic.schedule import dynamic_items, schedule_generic

op = relax.op
BATCH, LENGTH = (tirx.Var(name, "int64") for name in ("batch", "length"))
SIZES = [(1, 1), (2, 3), (3, 1), (1, 17)]
TABLE = np.random.default_rng(1).standard_normal((40, 24)).astype(np.float32)
Inputs = tuple[tuple[tuple[object, ...], str], ...]

ROWS = ((BATCH, LENGTH, 24), "float32")
IDS = ((BATCH, LENGTH), "int64")
IMAGES = ((BATCH, 9, 8, 20), "float32")


def normal(expr: relax.Expr) -> relax.Expr:
    return relax.BlockBuilder.current().normalize(expr)


def divided_by_length(x: relax.Expr) -> relax.Expr:
    """A kernel whose elements depend on the value of a dynamic size."""

    def compute(x: te.Tensor) -> te.Tensor:
        length = x.shape[1].astype("float32")
        return te.compute(x.shape, lambda *place: x(*place) / length, name="divided")

    return relax.BlockBuilder.current().emit_te(compute, x)


CASES: dict[str, tuple[str, Callable[..., relax.Expr], Inputs]] = {
    "sum": ("generic_injective", lambda x, y: op.tanh(op.add(x, y)), (ROWS, ROWS)),
    "rows of a table": (
        "generic_injective",
        lambda ids: op.take(relax.const(TABLE), ids, axis=0, mode="clip"),
        (IDS,),
    ),
    "mask": (
        "generic_injective",
        lambda ids: op.subtract(relax.const(1.0, "float32"), op.astype(ids, "float32")),
        (IDS,),
    ),
    "largest of windows": (
        "generic_pool",
        lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), layout="NHWC"),
        (IMAGES,),
    ),
    "mean of images": ("generic_reduction", lambda x: op.mean(x, [1, 2]), (IMAGES,)),
    "columns side by side": (
        "generic_injective",
        lambda x, y: op.concat([x, y], axis=-1),
        (ROWS, ROWS),
    ),
    "divided by a size": ("generic_injective", divided_by_length, (ROWS,)),
    "batches within rows": ("generic_transpose", lambda x: op.permute_dims(x, (2, 0, 1)), (ROWS,)),
    "rows before columns": (
        "generic_transpose",
        lambda x: op.permute_dims(x, (0, 3, 1, 2)),
        (IMAGES,),
    ),
}


def lowered(body: Callable[..., relax.Expr], inputs: Inputs) -> IRModule:
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    return ir.transform.Sequential(passes)(module(body, *inputs))  # type: ignore[arg-type]


def arrays_of(inputs: Inputs, batch: int, length: int) -> list[np.ndarray]:
    rng = np.random.default_rng(batch * 100 + length)
    found = []
    for shape, dtype in inputs:
        sizes = [{BATCH: batch, LENGTH: length}.get(size, size) for size in shape]  # type: ignore[call-overload]
        values = rng.integers(0, 40, sizes) if dtype == "int64" else rng.standard_normal(sizes)
        found.append(values.astype(dtype))
    return found


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_plain_loops(name: str, threads: int) -> None:
    _, body, inputs = CASES[name]
    plain = lowered(body, inputs)
    machine = Machine("znver4", isa_named("avx2"), threads)
    scheduled = schedule_leftovers(machine, [])(plain)
    run, reference = compiled(scheduled), compiled(plain)
    for batch, length in SIZES:
        tensors = [tvm.runtime.tensor(each) for each in arrays_of(inputs, batch, length)]
        # A mean of 72 numbers in another order.
        bound = 72 * np.finfo(np.float32).eps
        result, wanted = run(*tensors).numpy(), reference(*tensors).numpy()
        assert result.shape == wanted.shape
        assert np.abs(result - wanted).max(initial=0) <= bound * max(1, np.abs(wanted).max())


@pytest.mark.parametrize("name", CASES)
def test_the_schedule_is_that_of_known_sizes(name: str) -> None:
    expected, body, inputs = CASES[name]
    machine = Machine("znver4", isa_named("avx512"))
    functions = [
        f for f in lowered(body, inputs).functions.values() if isinstance(f, tirx.PrimFunc)
    ]
    assert [schedule_generic(each, machine)[1] for each in functions] == [expected]


def test_what_reads_other_items_is_left() -> None:
    (function,) = (
        f
        for f in lowered(lambda x: op.sum(x, [1]), (ROWS,)).functions.values()
        if isinstance(f, tirx.PrimFunc)
    )
    machine = Machine("znver4", isa_named("avx2"))
    with pytest.raises(NotHandledError, match="has an axis of length"):
        dynamic_items(function, machine)
    assert schedule_generic(function, machine)[1] == "generic_reduction"  # by `static_rows`


def test_known_sizes_are_not_its_business() -> None:
    (function,) = (
        f
        for f in lowered(op.tanh, (((4, 5), "float32"),)).functions.values()
        if isinstance(f, tirx.PrimFunc)
    )
    with pytest.raises(NotHandledError, match="all sizes are static"):
        dynamic_items(function, Machine("znver4", isa_named("avx2")))

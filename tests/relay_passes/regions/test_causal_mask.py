"""Which masks only say that a query sees no later key."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, tirx

from relay_passes.ir.graph import DataflowGraph, op_name
from relay_passes.regions.causal_mask import LOWEST, additive_diagonal, without_causal_mask
from tests.relay_passes.graphs import module
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.size import SymbolicSize, size_from

op = relax.op
F = "float32"
GRAPH = DataflowGraph(module(lambda x: op.tanh(x), ((2,), F))["main"].body.blocks[0])
M, N = 4, 6


def mask(causal: int, number: float = -np.inf, rows: int = M, columns: int = N) -> np.ndarray:
    visible = np.tri(rows, columns, causal, dtype=bool)
    return np.where(visible, 0, number).astype(np.float32)


def diagonal(
    array: np.ndarray, shape: tuple[int, int] = (M, N), finite: bool = False
) -> int | None:
    return additive_diagonal(GRAPH, relax.const(array), shape, finite)


@pytest.mark.parametrize("causal", range(-2, N))
def test_the_diagonal_of_a_constant(causal: int) -> None:
    assert diagonal(mask(causal)) == min(causal, N - 1)
    assert diagonal(mask(causal)[None, None]) == min(causal, N - 1)


LEAST = float(np.finfo(np.float32).min)
LEAST_BFLOAT16 = -255 * 2.0**120


def test_finite_numbers_hide_if_they_are_lowest_and_every_query_sees_a_key() -> None:
    """Scores of -1e4, -65504 (float16's lowest) or -1e30 may belong to a visible key."""
    assert LEAST < LEAST_BFLOAT16 < LOWEST
    for number in (LEAST, LEAST / 2, LEAST_BFLOAT16, LOWEST):
        assert diagonal(mask(1, number)) is None
        assert diagonal(mask(1, number), finite=True) == 1
        assert diagonal(mask(-1, number), finite=True) is None  # the first query sees nothing
    for number in (-1e4, -65504, -1e9, -1e30, LOWEST * (1 - 2.0**-24)):
        assert diagonal(mask(1, number), finite=True) is None
    assert diagonal(mask(-1)) == diagonal(mask(-1), finite=True) == -1


def test_a_mask_of_float16_that_is_cast() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        hidden = op.broadcast_to(relax.const(-np.inf, "float16"), (M, N))
        return op.add(x, op.triu(op.astype(hidden, F), 2))

    graph = DataflowGraph(module(body, ((M, N), F))["main"].body.blocks[0])
    assert additive_diagonal(graph, graph.bindings[-1].value.args[1], (M, N)) == 1


def test_other_masks_are_none() -> None:
    window = mask(0)
    window[3, 0] = -np.inf
    assert diagonal(window) is None
    assert diagonal(mask(0) + np.float32(1)) is None
    assert diagonal(np.full((M, N), -np.inf, np.float32)) is None
    assert diagonal(np.stack([mask(0)] * 2)) is None  # for each batch
    assert diagonal(mask(0, rows=1), (M, N)) is None  # one row for all queries
    assert diagonal(mask(0, -60000).astype("float16")) is None


def test_no_mask_at_all_is_a_late_diagonal() -> None:
    assert diagonal(np.zeros((M, N), np.float32)) == N - 1


def scores(*steps: EpilogueOp, operands: int = 1) -> Region:
    return Region(
        op="batch_matmul",
        inputs=(Tensor((2, M, 3), F), Tensor((2, 3, N), F)),
        operands=(Tensor((M, N), F),) * operands,
        output=Tensor((2, M, N), F),
        epilogue=steps,
    )


HALF = EpilogueOp("constant", value=0.5)


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ([EpilogueOp("add", (0, 1))], []),
        ([EpilogueOp("add", (1, 0))], []),
        (
            [HALF, EpilogueOp("multiply", (0, 2)), EpilogueOp("add", (3, 1))],
            ["constant", "multiply"],
        ),
        ([EpilogueOp("add", (0, 1)), HALF, EpilogueOp("divide", (2, 3))], ["constant", "divide"]),
        ([EpilogueOp("add", (0, 1)), EpilogueOp("add", (2, 1))], []),
    ],
)
def test_the_step_and_the_operand_disappear(steps: list[EpilogueOp], kept: list[str]) -> None:
    found = without_causal_mask(GRAPH, scores(*steps), [relax.const(mask(0))])
    assert [step.op for step in found.region.epilogue] == kept
    assert found.causal == 0 and found.operands == () and found.region.operands == ()
    for number, step in enumerate(found.region.epilogue):
        assert all(arg <= number for arg in step.args)


@pytest.mark.parametrize(
    "steps",
    [
        [EpilogueOp("add", (0, 1)), EpilogueOp("tanh", (2,))],
        [
            EpilogueOp("add", (0, 1)),
            EpilogueOp("constant", value=-1.0),
            EpilogueOp("multiply", (2, 3)),
        ],
        [EpilogueOp("add", (0, 1)), EpilogueOp("multiply", (2, 2))],
        [EpilogueOp("add", (0, 1)), EpilogueOp("multiply", (2, 1))],
        [EpilogueOp("add", (0, 1)), EpilogueOp("negative", (2,)), EpilogueOp("add", (2, 3))],
        [EpilogueOp("multiply", (0, 1))],
    ],
)
def test_a_mask_that_later_steps_may_undo_stays(steps: list[EpilogueOp]) -> None:
    region = scores(*steps)
    found = without_causal_mask(GRAPH, region, [relax.const(mask(0))])
    assert found.region == region and found.causal is None and len(found.operands) == 1


def test_other_operands_keep_their_places() -> None:
    region = scores(EpilogueOp("add", (0, 1)), EpilogueOp("add", (3, 2)), operands=2)
    bias = relax.const(np.ones((M, N), np.float32))
    for causal, order in ((0, [0, 1]), (2, [1, 0])):
        both = [relax.const(mask(causal)), bias]
        found = without_causal_mask(GRAPH, region, [both[at] for at in order])
        assert found.region.epilogue == (EpilogueOp("add", (0, 1)),)
        assert found.causal == causal and found.operands[0].same_as(bias)


def test_of_two_masks_the_narrower_counts_and_one_that_hides_nothing_is_dropped() -> None:
    region = scores(EpilogueOp("add", (0, 1)), EpilogueOp("add", (3, 2)), operands=2)
    two = [relax.const(mask(2)), relax.const(mask(1))]
    assert without_causal_mask(GRAPH, region, two).causal == 1
    nothing = without_causal_mask(GRAPH, region, [relax.const(np.zeros((M, N), F))] * 2)
    assert nothing.causal is None and nothing.region.epilogue == ()


def masked(*arrays: np.ndarray) -> int | None:
    """The diagonal of scores to which these arrays are added; None if a mask stays."""
    count = len(arrays)
    steps = [EpilogueOp("add", (count + i if i else 0, i + 1)) for i in range(count)]
    region = scores(*steps, operands=count)
    found = without_causal_mask(GRAPH, region, [relax.const(array) for array in arrays])
    return None if found.operands else found.causal


def test_finite_numbers_hide_only_if_nothing_else_is_added() -> None:
    """A second mask may lower all scores that the first one shows."""
    low, high = mask(1, LEAST), mask(2, LEAST)
    assert masked(low) == masked(low, high) == masked(high, low) == 1
    assert masked(low, mask(0)) == masked(mask(0), low) == 0
    window = mask(0)
    window[3, 0] = -np.inf
    for other in (np.zeros((M, N), F) - 1, window, mask(2, -1e4), mask(-1, LEAST)):
        assert masked(low, other) is None and masked(other, low) is None
    x = relax.Var("x", relax.TensorType((M, N), F))
    for operands in ([relax.const(low), x], [x, relax.const(low)]):
        region = scores(EpilogueOp("add", (0, 1)), EpilogueOp("add", (3, 2)), operands=2)
        found = without_causal_mask(GRAPH, region, operands)
        assert found.region == region and found.causal is None


@pytest.mark.parametrize(("factor", "hidden"), [(0.125, True), (8.0, True), (2.0**-100, False)])
def test_finite_numbers_hide_if_a_later_scale_leaves_them_apart(
    factor: float, hidden: bool
) -> None:
    steps = [
        EpilogueOp("add", (0, 1)),
        EpilogueOp("constant", value=factor),
        EpilogueOp("multiply", (2, 3)),
    ]
    found = without_causal_mask(GRAPH, scores(*steps), [relax.const(mask(1, LEAST))])
    assert found.causal == (1 if hidden else None)


@pytest.mark.parametrize(
    ("number", "condition", "hidden"),
    [
        (-np.inf, 1, True),
        (-np.inf, -1, True),
        (LEAST, 1, True),
        (LEAST, -1, False),
        (-1e4, 1, False),
        (-65504.0, 1, False),
    ],
)
def test_conditions(number: float, condition: int, hidden: bool) -> None:
    visible = np.tri(M, N, condition, dtype=bool)
    for seen in (visible, ~visible):
        args = (1, 0, 2) if seen is visible else (1, 2, 0)
        region = scores(EpilogueOp("constant", value=number), EpilogueOp("where", args))
        region = region.replace(operands=(Tensor((M, N), "bool"),))
        found = without_causal_mask(GRAPH, region, [relax.const(seen)])
        assert found.causal == (condition if hidden else None)


@pytest.mark.parametrize("last", ["past", "total"])
def test_a_diagonal_may_be_a_size(last: str) -> None:
    """The mask has past + n keys for n queries, or `total` keys with the diagonal total - n."""
    n, past, total = (tirx.Var(name, "int64") for name in ("n", "past", "total"))
    keys, diagonal = (past + n, past) if last == "past" else (total, total - n)

    def body(x: relax.Expr, *_: relax.Expr) -> relax.Expr:
        full = op.broadcast_to(relax.const(-np.inf, F), (n, keys))
        return op.add(x, op.triu(full, diagonal + 1))

    mod = module(body, ((n, keys), F), ((past,), F))  # type: ignore[arg-type]
    graph = DataflowGraph(mod["main"].body.blocks[0])
    added = next(b.value for b in graph.bindings if op_name(b.value) == "relax.add")
    mask = added.args[1]
    shape = (SymbolicSize.of("n"), size_from("n+past" if last == "past" else "total"))
    found = additive_diagonal(graph, mask, shape)
    assert found == size_from("past" if last == "past" else "total+-1*n")
    region = scores(EpilogueOp("add", (0, 1))).replace(
        inputs=(Tensor((2, shape[0], 3), F), Tensor((2, 3, shape[1]), F)),
        operands=(Tensor(shape, F),),
        output=Tensor((2, *shape), F),
    )
    visible = without_causal_mask(graph, region, (mask,))
    assert visible.causal == found and not visible.region.operands

"""Attention as exporters write it becomes one region that reads its operands in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from numpy.typing import ArrayLike
from tvm import ir, relax

from relay_passes.ir.decisions import DecisionLog
from relay_passes.lower_module import collect_regions, partition_module
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import TARGET, constant, module
from tir_schedules.core.region import Region

op = relax.op
B, S, N, D = 2, 20, 4, 16
H = N * D
X = ((B, S, H), "float32")
Body = Callable[..., relax.Expr]


def number(value: ArrayLike) -> relax.Expr:
    """A f32 constant."""
    return relax.const(np.asarray(value, np.float32))


def linear(x: relax.Expr, seed: int, columns: int = H) -> relax.Expr:
    """A projection with a bias."""
    return op.add(op.matmul(x, constant(H, columns, seed=seed)), constant(columns, seed=seed + 50))


def heads(x: relax.Expr, count: int = N) -> relax.Expr:
    """[B, S, count * D] -> [B, count, S, D]."""
    return op.permute_dims(op.reshape(x, (B, S, count, D)), [0, 2, 1, 3])


def transposed(x: relax.Expr) -> relax.Expr:
    """The last two axes exchanged."""
    return op.permute_dims(x, [0, 1, 3, 2])


def mixed(scores: relax.Expr, v: relax.Expr) -> relax.Expr:
    """Softmax, product, output projection."""
    out = op.permute_dims(op.matmul(op.nn.softmax(scores, -1), v), [0, 2, 1, 3])
    return linear(op.reshape(out, (B, S, H)), 9)


def gpt2(x: relax.Expr) -> relax.Expr:
    """One projection split in three; divided scores; a constant boolean condition."""
    parts = op.split(linear(x, 1, 3 * H), 3, 2)
    q, k, v = (heads(parts[i]) for i in range(3))
    scores = op.divide(op.matmul(q, transposed(k)), number(4.0))
    seen = relax.const(np.tri(S, dtype=bool).reshape(1, 1, S, S))
    return mixed(op.where(seen, scores, number(np.finfo(np.float32).min)), v)


def bert(x: relax.Expr, mask: relax.Expr) -> relax.Expr:
    """Divided scores; a mask of keys."""
    q, k, v = (heads(linear(x, i)) for i in range(3))
    return mixed(op.add(op.divide(op.matmul(q, transposed(k)), number(4.0)), mask), v)


def vit(x: relax.Expr) -> relax.Expr:
    """The root of the scale on q and on k, as PyTorch's own attention is exported."""
    q, k, v = (heads(linear(x, i)) for i in range(3))
    return mixed(op.matmul(op.multiply(q, number(0.5)), op.multiply(transposed(k), number(0.5))), v)


def t5(x: relax.Expr) -> relax.Expr:
    """No scale; a bias for each head and distance."""
    q, k, v = (heads(linear(x, i)) for i in range(3))
    return mixed(op.add(op.matmul(q, transposed(k)), constant(1, N, S, S, seed=7)), v)


def llama(x: relax.Expr, mask: relax.Expr) -> relax.Expr:
    """Rotary embeddings; keys and values repeated for groups of heads."""

    def rotated(x: relax.Expr) -> relax.Expr:
        first = op.strided_slice(x, [3], [0], [D // 2])
        second = op.strided_slice(x, [3], [D // 2], [D])
        halves = op.concat([op.negative(second), first], 3)
        return op.add(
            op.multiply(x, constant(1, 1, S, D, seed=20)),
            op.multiply(halves, constant(1, 1, S, D, seed=21)),
        )

    def repeated(x: relax.Expr) -> relax.Expr:
        wide = op.broadcast_to(op.expand_dims(x, 2), (B, 2, N // 2, S, D))
        return op.reshape(wide, (B, N, S, D))

    q = rotated(heads(linear(x, 0)))
    k, v = (heads(linear(x, i, 2 * D), 2) for i in (1, 2))
    scores = op.multiply(op.matmul(q, transposed(repeated(rotated(k)))), number(0.25))
    return mixed(op.add(scores, mask), repeated(v))


def falcon(x: relax.Expr) -> relax.Expr:
    """All heads share keys and values; the triangle of a causal mask."""
    q = heads(linear(x, 0))
    k, v = (op.reshape(linear(x, i, D), (B, 1, S, D)) for i in (1, 2))
    scores = op.multiply(op.matmul(q, transposed(k)), number(0.25))
    triangle = op.triu(op.broadcast_to(number(-np.inf), (S, S)), 1)
    return mixed(op.add(scores, triangle), v)


def pytorch(x: relax.Expr) -> relax.Expr:
    """scaled_dot_product_attention of TVM's importer."""
    q, k, v = (op.permute_dims(heads(linear(x, i)), [0, 2, 1, 3]) for i in range(3))
    out = op.permute_dims(op.nn.attention(q, k, v, causal_mask="TopLeft"), [0, 2, 1, 3])
    return linear(op.reshape(op.permute_dims(out, [0, 2, 1, 3]), (B, S, H)), 9)


def whisper(x: relax.Expr) -> relax.Expr:
    """The scale on the projected query; batches and heads as one axis."""

    def flat(x: relax.Expr) -> relax.Expr:
        return op.reshape(heads(x), (B * N, S, D))

    q, k, v = (linear(x, i) for i in range(3))
    scores = op.matmul(flat(op.multiply(q, number(0.25))), op.permute_dims(flat(k), [0, 2, 1]))
    out = op.reshape(op.matmul(op.nn.softmax(scores, -1), flat(v)), (B, N, S, D))
    return linear(op.reshape(op.permute_dims(out, [0, 2, 1, 3]), (B, S, H)), 9)


KEYS, PAIRS = ((B, 1, 1, S), "float32"), ((B, 1, S, S), "float32")
FORMS: dict[str, tuple[Body, tuple[tuple[tuple[int, ...], str], ...], int | None]] = {
    "gpt2": (gpt2, (X,), 0),
    "bert": (bert, (X, KEYS), None),
    "vit": (vit, (X,), None),
    "t5": (t5, (X,), None),
    "llama": (llama, (X, PAIRS), None),
    "falcon": (falcon, (X,), 0),
    "pytorch": (pytorch, (X,), 0),
    "whisper": (whisper, (X,), None),
}
# Operators that stay outside regions: rotary embeddings, which no region takes.
ROTATION = {"reshape", "permute_dims", "strided_slice", "negative", "concat", "multiply", "add"}


@cache
def attention(name: str, precision: str) -> Region:
    """The only attention region of a form."""
    body, inputs, _ = FORMS[name]
    options = PipelineOptions(TARGET, precision=precision)
    found = [r for r in collect_regions(module(body, *inputs), options) if r.op == "attention"]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("precision", ["auto", "bf16"])
@pytest.mark.parametrize("name", FORMS)
def test_one_region(name: str, precision: str) -> None:
    region = attention(name, precision)
    causal = FORMS[name][2]
    assert region.attrs.get("causal") == causal
    assert region.output.shape == (B, S, H)  # as the output projection reads it
    steps = [step.op for part in region.parts for step in part.epilogue if step.op != "constant"]
    assert "where" not in steps and steps.count("multiply") + steps.count("divide") <= 1


@pytest.mark.parametrize("name", FORMS)
def test_nothing_is_moved_around_it(name: str) -> None:
    body, inputs, _ = FORMS[name]
    decisions: DecisionLog = []
    mod = partition_module(module(body, *inputs), PipelineOptions(TARGET), decisions)
    left: Counter[str] = Counter()
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call) and isinstance(call.op, ir.Op):
                left[str(call.op.name).removeprefix("relax.")] += 1
    assert set(left) <= (ROTATION if name == "llama" else set())


def test_a_scale_on_both_sides_is_one_number() -> None:
    (scores, _, _) = attention("vit", "auto").parts
    assert [step.value for step in scores.epilogue if step.op == "constant"] == [0.25]

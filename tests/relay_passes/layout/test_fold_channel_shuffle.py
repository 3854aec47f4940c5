"""Channel shuffles go into weights where possible, and values stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax, tirx
from tvm.ir import assert_structural_equal

from relay_passes.ir.graph import DataflowGraph
from relay_passes.layout.fold_channel_shuffle import Shuffle, fold_channel_shuffle, match_shuffle
from tests.relay_passes.graphs import bind, constant, module, run

op = relax.op
F = "float32"
C = 8
X = ((2, 6, 5, C), F)
LAST = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC"}
QUICKLY = tvm.target.Target({"kind": "llvm", "opt-level": 0})
Body = Callable[..., Any]


def shuffle(x: relax.Expr, groups: int = 2) -> relax.Expr:
    *rest, last = x.ty.shape.values
    channels = int(last)
    parts = bind(op.reshape(x, (*rest, groups, channels // groups)))
    rank = len(rest)
    transposed = bind(op.permute_dims(parts, [*range(rank), rank + 1, rank]))
    return bind(op.reshape(transposed, (*rest, channels)))


def read_halfway(x: relax.Expr) -> list[relax.Expr]:
    """A shuffle whose transposed tensor another operator reads."""
    rest = tuple(map(int, x.ty.shape.values))[:-1]
    transposed = bind(op.permute_dims(bind(op.reshape(x, (*rest, 2, C // 2))), [0, 1, 2, 4, 3]))
    return [op.tanh(bind(op.reshape(transposed, (*rest, C)))), op.exp(transposed)]


def read_before(x: relax.Expr) -> list[relax.Expr]:
    """A shuffle whose input another operator reads."""
    return [op.tanh(shuffle(x)), op.exp(x)]


def of_three_factors(x: relax.Expr) -> relax.Expr:
    """A permutation of the channels that splits them into three factors."""
    rest = tuple(map(int, x.ty.shape.values))[:-1]
    parts = bind(op.permute_dims(bind(op.reshape(x, (*rest, 2, 2, 2))), [0, 1, 2, 5, 4, 3]))
    return bind(op.reshape(parts, (*rest, C)))


def conv(x: relax.Expr, *shape: int, **attrs: Any) -> relax.Expr:
    return bind(op.nn.conv2d(x, constant(*shape, seed=len(attrs)), **{**LAST, **attrs}))


def biased(x: relax.Expr) -> relax.Expr:
    return bind(op.add(bind(op.multiply(x, constant(1, 1, 1, C))), constant(C)))


def depthwise(x: relax.Expr) -> relax.Expr:
    return conv(x, 3, 3, 1, C, groups=C, padding=1, strides=2)


def quantized_conv(x: relax.Expr, axis: int) -> relax.Expr:
    rng = np.random.default_rng(1)
    weight = relax.const(rng.integers(-99, 99, (1, 1, C, C), dtype=np.int8))
    scale, zero = relax.const(rng.random(C, np.float32)), relax.const(1, "int8")
    return bind(op.nn.conv2d(x, bind(op.dequantize(weight, scale, zero, axis=axis)), **LAST))


def same_values(before: IRModule, after: IRModule) -> None:
    """Sums of at most 72 products in another order: 72 * 2**-24 of the sum of magnitudes, which is
    less than 1e-5 of the largest result times 2."""
    x = np.random.default_rng(0).standard_normal(X[0]).astype(np.float32)
    results = (run(mod, [x], QUICKLY) for mod in (before, after))
    for wanted, result in zip(*results, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.sampled
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            lambda x: conv(
                op.nn.relu(bind(op.add(depthwise(shuffle(x)), constant(C)))), 1, 1, C, 4
            ),
            id="down to a convolution",
        ),
        pytest.param(
            lambda x: op.matmul(
                bind(op.reshape(bind(op.mean(shuffle(x, 4), [1, 2], True)), (2, C))), constant(C, 3)
            ),
            id="down to a product",
        ),
        pytest.param(
            lambda x: op.tanh(
                shuffle(bind(op.multiply(conv(x, 1, 1, C, C), constant(1, 1, 1, C))))
            ),
            id="up to a convolution",
        ),
        pytest.param(
            lambda x: op.tanh(shuffle(depthwise(bind(op.matmul(x, constant(C, C)))))),
            id="up to a product",
        ),
        pytest.param(
            lambda x: conv(depthwise(shuffle(x)), 3, 1, 4, 6, groups=2, padding=(1, 0, 0, 0)),
            id="to taps of a grouped convolution",
        ),
        pytest.param(
            lambda x: conv(shuffle(conv(x, 1, 1, 4, C, groups=2), 4), 1, 1, 4, 6, groups=2),
            id="between grouped convolutions",
        ),
        pytest.param(lambda x: quantized_conv(shuffle(x), 3), id="down to a quantised weight"),
        pytest.param(
            lambda x: op.tanh(shuffle(quantized_conv(x, 3))), id="up to a quantised weight"
        ),
        pytest.param(
            lambda x: quantized_conv(shuffle(x), 2), id="down to a weight with a scale per input"
        ),
        pytest.param(
            lambda x: [
                conv(y := shuffle(bind(op.nn.max_pool2d(x, (2, 2), layout="NHWC"))), 1, 1, C, 2),
                conv(op.add(y, bind(op.nn.relu(y))), 1, 1, C, 3, strides=2),
            ],
            id="several readers",
        ),
        pytest.param(
            lambda x: conv(shuffle(depthwise(shuffle(x)), 4), 1, 1, C, 4), id="two shuffles"
        ),
    ],
)
def test_it_vanishes(body: Body) -> None:
    before = module(lambda x: body(bind(op.abs(x))), X)
    after = fold_channel_shuffle()(before)
    assert "R.permute_dims" in before.script()
    assert "R.permute_dims" not in after.script()
    same_values(before, after)


def test_a_convolution_between_two_shuffles_takes_both_in() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.tanh(shuffle(conv(shuffle(bind(op.abs(x))), 1, 1, C, C), 4))

    before = module(body, X)
    after = fold_channel_shuffle()(before)
    assert "R.permute_dims" not in after.script()
    same_values(before, after)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(lambda x: conv(depthwise(shuffle(x)), 1, 1, C, 4), id="down"),
        pytest.param(lambda x: op.tanh(shuffle(conv(x, 1, 1, C, C))), id="up"),
        pytest.param(
            lambda x: conv(depthwise(shuffle(x)), 3, 1, 4, 6, groups=2, padding=(1, 0, 0, 0)),
            id="to taps of a grouped convolution",
        ),
    ],
)
def test_it_vanishes_for_any_size(body: Body) -> None:
    """A shuffle of any number of images of any height and width vanishes."""
    sizes = tuple(tirx.Var(name, "int64") for name in ("n", "h", "w"))
    before = module(lambda x: body(bind(op.abs(x))), ((*sizes, C), F))
    after = fold_channel_shuffle()(before)
    assert "R.permute_dims" in before.script()
    assert "R.permute_dims" not in after.script()
    same_values(before, after)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(lambda x: shuffle(x), id="an output"),
        pytest.param(lambda x: conv(shuffle(x), 1, 1, 1, C, groups=C), id="depthwise at the end"),
        pytest.param(
            lambda x: conv(shuffle(x), 1, 2, 4, C, groups=2), id="a grouped row of several taps"
        ),
        pytest.param(
            lambda x: conv(shuffle(x, 4), 1, 1, 2, C, groups=4),
            id="groups without a part of every factor",
        ),
        pytest.param(lambda x: op.nn.softmax(shuffle(x)), id="a sum over channels"),
        pytest.param(
            lambda x: [conv(y := shuffle(x), 1, 1, C, C), op.concat([y, y], 3)],
            id="a reader that needs it",
        ),
        pytest.param(lambda x: op.multiply(shuffle(x), x), id="with something that is not moved"),
        pytest.param(lambda x: read_halfway(conv(x, 1, 1, C, C)), id="read halfway"),
        pytest.param(lambda x: read_before(conv(x, 1, 1, C, C)), id="read before"),
        pytest.param(
            lambda x: conv(of_three_factors(x), 1, 1, 4, C, groups=2),
            id="three factors before a grouped convolution",
        ),
    ],
)
def test_it_stays(body: Body) -> None:
    mod = module(lambda x: body(bind(op.abs(x))), X)
    assert_structural_equal(fold_channel_shuffle()(mod), mod)


def test_a_mean_over_channels_stops_it() -> None:
    """The mean stops it, also where an axis as long as the channels comes last afterwards."""
    mod = module(
        lambda x: op.matmul(bind(op.mean(shuffle(bind(op.abs(x))), [3])), constant(C, 3)),
        ((2, 3, C, C), F),
    )
    assert_structural_equal(fold_channel_shuffle()(mod), mod)


def test_the_permutation() -> None:
    assert list(Shuffle(relax.const(0), (2, 3), (1, 0), ()).permutation) == [0, 3, 1, 4, 2, 5]
    mod = module(lambda x: shuffle(x), X)
    graph = DataflowGraph(mod["main"].body.blocks[0])
    found = match_shuffle(graph, 2)
    assert found is not None
    assert (found.factors, found.order) == ((2, 4), (1, 0))
    assert [graph.position[step] for step in found.steps] == [0, 1, 2]
    assert match_shuffle(graph, 1) is None
    image = module(lambda x: shuffle(x), ((1, 6, 1, C), F))
    found = match_shuffle(DataflowGraph(image["main"].body.blocks[0]), 2)
    assert found is not None
    assert (found.factors, found.order) == ((2, 4), (1, 0))
    transposed = module(lambda x: op.reshape(op.permute_dims(x, [0, 2, 1, 3]), X[0]), X)
    assert match_shuffle(DataflowGraph(transposed["main"].body.blocks[0]), 1) is None

"""A small network with channels first runs channels last and gives TVM's results."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

import tvm_hybrid
from tests.relay_passes.graphs import bind, constant, module, run

op = relax.op
SHAPE = (1, 3, 20, 18)


def layer(x: relax.Expr, *shape: int, **attrs: Any) -> relax.Expr:
    """Convolution, bias and a clipped activation, all of similar magnitude."""
    fan_in = np.sqrt(np.prod(shape[1:]))
    weight = relax.const((constant(*shape).value.numpy() / fan_in).astype(np.float32))
    y = bind(op.add(bind(op.nn.conv2d(x, weight, **attrs)), constant(1, shape[0], 1, 1, seed=1)))
    return bind(op.clip(y, 0, 6))


def network(x: relax.Expr) -> list[relax.Expr]:
    """First layer, depthwise, pointwise, squeeze and excite, residual, shuffle, pool, resize."""
    x = layer(x, 16, 3, 3, 3, strides=2, padding=1)
    y = layer(x, 16, 1, 3, 3, groups=16, padding=1)
    y = layer(y, 16, 16, 1, 1)
    gate = layer(layer(bind(op.mean(y, [2, 3], True)), 4, 16, 1, 1), 16, 4, 1, 1)
    y = bind(op.add(bind(op.multiply(y, bind(op.sigmoid(gate)))), x))
    parts = bind(op.reshape(y, (1, 4, 4, 10, 9)))
    y = bind(op.reshape(bind(op.permute_dims(parts, [0, 2, 1, 3, 4])), (1, 16, 10, 9)))
    y = layer(y, 24, 4, 1, 1, groups=4)
    small = bind(op.nn.max_pool2d(y, (2, 2), (2, 2)))
    method = {"method": "nearest_neighbor", "coordinate_transformation_mode": "asymmetric"}
    large = bind(op.image.resize2d(small, (10, 8), rounding_method="floor", **method))
    y = bind(op.concat([large, bind(op.strided_slice(y, [3], [0], [8]))], 1))
    return [op.nn.softmax(layer(y, 5, 48, 1, 1), 1), op.mean(y, [2, 3])]


def test_a_small_network() -> None:
    mod = module(network, (SHAPE, "float32"))
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    executable = tvm_hybrid.compile(mod, num_threads=1)
    results = [np.asarray(result.numpy()) for result in executable.run({"x0": x})]
    for wanted, result in zip(run(mod, [x]), results, strict=True):
        # Nine layers of sums of at most 48 products of values up to 6, in another order: each adds
        # at most 48 * 2**-24 of the sum of magnitudes, which is below 2e-5.
        np.testing.assert_allclose(result, wanted, rtol=0, atol=9 * 2e-5)
    reorders = [d for d in executable.explain() if "reorder" in d.reason]
    assert [d.reason.split(" of ")[0] for d in reorders] == [
        "reorder NCHW -> NHWC",
        "reorder NHWC -> NCHW",
    ]
    assert not [d for d in executable.explain().left if "conv" in d.op]

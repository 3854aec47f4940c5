"""One program for images of any size runs channels last and equals programs with static sizes."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax, tirx

from tests.relay_passes.graphs import constant, module

from .networks import compiled, conv, normal

pytestmark = pytest.mark.turns

op = relax.op
BATCH, HEIGHT, WIDTH = (tirx.Var(name, "int64") for name in ("batch", "height", "width"))


def network(batch: Any, height: Any, width: Any) -> IRModule:
    """Convolutions of stride 2 and 1, a depthwise one, a gate of means, and a doubled image."""

    def body(x: relax.Expr) -> relax.Expr:
        x = conv(x, 0, 16, 3, 3, 3, strides=2, padding=1)
        y = conv(x, 2, 16, 1, 3, 3, padding=1, groups=16)
        y = conv(y, 4, 16, 16, 1, 1)
        gate = normal(op.sigmoid(normal(op.mean(y, [2, 3], keepdims=True))))
        x = normal(op.add(normal(op.multiply(y, gate)), x))
        x = normal(op.concat([x, conv(x, 6, 16, 16, 3, 3, padding=1)], axis=1))
        return op.nn.conv2d_transpose(x, constant(32, 3, 2, 2, seed=8), strides=[2, 2])

    return module(body, ((batch, 3, height, width), "float32"))


@functools.cache
def static(*sizes: int) -> relax.VirtualMachine:
    """A program with these static sizes, on one thread."""
    return relax.VirtualMachine(compiled(network(*sizes), 1).executable, tvm.cpu())


@pytest.mark.parametrize("threads", [1, 2])
def test_one_program_has_the_results_of_known_sizes(threads: int) -> None:
    dynamic = compiled(network(BATCH, HEIGHT, WIDTH), threads)
    taken = {d.op.split(" ")[0] for d in dynamic.decisions if d.taken and d.kernel}
    # The depthwise convolution and the product after it are one kernel.
    assert taken == {"conv2d", "conv2d_winograd", "depthwise_pointwise", "matmul", "concat"}
    run = relax.VirtualMachine(dynamic.executable, tvm.cpu())["main"]
    for sizes in ((1, 9, 40), (2, 4, 7), (1, 1, 1)):
        rng = np.random.default_rng(sum(sizes))
        x = rng.standard_normal((sizes[0], 3, *sizes[1:])).astype(np.float32)
        wanted = static(*sizes)["main"](tvm.runtime.tensor(x)).numpy()
        found = run(tvm.runtime.tensor(x)).numpy()
        assert found.shape == wanted.shape
        # Five layers of sums of up to 144 products, perhaps in another order; Winograd's errors
        # of 16 channels are far below that.
        bound = 5 * 144 * np.finfo(np.float32).eps * np.abs(wanted).max()
        assert np.abs(found - wanted).max() <= bound

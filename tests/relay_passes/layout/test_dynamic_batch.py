"""With a dynamic batch, a network runs channels last throughout, as with a static batch."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax, tirx

from tests.relay_passes.graphs import constant, module

from .networks import compiled, conv, normal

op = relax.op
BATCH = tirx.Var("batch", "int64")


def network(batch: Any) -> IRModule:
    """Convolutions with a residual, a depthwise one, pools, and a product; channels first."""

    def body(x: relax.Expr) -> relax.Expr:
        x = conv(x, 0, 16, 3, 3, 3, strides=2, padding=1)
        x = normal(op.nn.max_pool2d(x, (2, 2), (2, 2)))
        y = conv(x, 2, 16, 1, 3, 3, padding=1, groups=16)
        x = normal(op.add(conv(y, 4, 16, 16, 1, 1), x))
        x = normal(op.concat([x, conv(x, 6, 8, 16, 3, 3, padding=1)], axis=1))
        return op.matmul(op.mean(x, [2, 3]), constant(24, 10, seed=8))

    return module(body, ((batch, 3, 20, 18), "float32"))


@functools.cache
def static(batch: int) -> relax.VirtualMachine:
    """A program with a static batch, on one thread."""
    return relax.VirtualMachine(compiled(network(batch), 1).executable, tvm.cpu())


@pytest.mark.parametrize("threads", [1, 2])
def test_one_program_has_the_results_of_known_batches(threads: int) -> None:
    dynamic = compiled(network(BATCH), threads)
    taken = [d.op.split(" ")[0] for d in dynamic.decisions if d.taken and d.kernel]
    assert sorted(taken) == ["conv2d", "conv2d", "depthwise_conv2d", "matmul", "matmul"]
    left = {d.kernel for d in dynamic.decisions if not d.taken and d.kernel}
    assert not {"generic_serial", "generic_blocks"} & left
    run = relax.VirtualMachine(dynamic.executable, tvm.cpu())["main"]
    for batch in (1, 3):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 20, 18)).astype(np.float32)
        wanted = static(batch)["main"](tvm.runtime.tensor(x)).numpy()
        # Five layers of sums of up to 144 products, perhaps in another order.
        bound = 5 * 144 * np.finfo(np.float32).eps * np.abs(wanted).max()
        assert np.abs(run(tvm.runtime.tensor(x)).numpy() - wanted).max() <= bound

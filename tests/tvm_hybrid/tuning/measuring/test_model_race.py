"""Two programs of one model, measured in turns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm import relax

from relay_passes.layout.minimum_cut import FIRST
from relay_passes.lower_module import layout_problems
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import module
from tests.relay_passes.layout.test_propagate_layout import kernel
from tvm_hybrid.targets.resolve import resolve_target
from tvm_hybrid.tuning.joint_layout import chooser
from tvm_hybrid.tuning.measuring.model_race import _same, race
from tvm_hybrid.tuning.measuring.sampling import Effort

op = relax.op


def test_both_run_on_the_same_numbers() -> None:
    """Integer inputs are 0, which is a valid index of any tensor."""

    def body(x: relax.Expr, index: relax.Expr) -> list[relax.Expr]:
        y = op.nn.conv2d(x, kernel(2, 8, 1, 1))
        return [y, op.take(op.nn.max_pool2d(x, (2, 2)), index, 1)]

    mod = module(body, ((1, 8, 6, 5), "float32"), ((3,), "int64"))
    options = PipelineOptions(target=resolve_target(None))
    (problem,) = layout_problems(mod, options)
    (name,) = [name for name in problem.default if "conv2d" in name]
    labels = problem.cheapest({name: FIRST})
    assert labels is not None
    first = replace(options, layouts=chooser({problem.key: labels}, "the test"))
    result = race((mod, first), (mod, options), Effort(samples=3, seconds=1.0))
    assert result.same
    assert len(result.times_us) == len(result.other_times_us) == 3
    assert min(*result.times_us, *result.other_times_us) > 0


def test_what_is_the_same() -> None:
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    assert _same([x], [x + np.float32(1e-3)])
    assert not _same([x], [x + np.float32(0.03)])
    assert not _same([x], [np.where(x > 0, np.nan, x)])
    infinite = np.where(x > 0, np.inf, x)
    assert _same([infinite], [infinite])
    bytes_ = np.full(4, 200, np.uint8)
    assert _same([bytes_], [bytes_ + np.uint8(1)])

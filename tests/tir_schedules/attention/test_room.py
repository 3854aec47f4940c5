"""Attention that reads keys and values with gaps between their heads."""

from __future__ import annotations

import numpy as np
import pytest

from tests.stand_ins import running
from tests.tir_schedules.attention.test_dynamic_attention import PAST, f32
from tests.tir_schedules.attention.test_growing import REGION, SETS, SIZE, grown_region
from tests.tir_schedules.dynamic_regions import BATCH, at_sizes
from tests.tir_schedules.run_region import ISAS, expected, machine_for, random_inputs
from tir_schedules.attention.caches import reject_room
from tir_schedules.attention.problem import AttentionProblem
from tir_schedules.core.template import template_for
from tvm_hybrid.runtime.feeds import tensor_of


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
def test_rows_behind_those_that_are_read_make_no_difference(isa: str) -> None:
    template, machine = template_for("attention"), machine_for(isa)
    function = template.build(REGION, template.default_config(REGION, machine), machine.isa)
    kernel = running.compiled(function.with_attr("global_symbol", "kernel"), isa)["kernel"]
    for batch, new, past in ((1, 1, 9), (2, 1, 40), (2, 3, 8), (1, 5, 0)):
        known = at_sizes(REGION, {"batch": batch, "length": new, "past": past})
        q, k, v, bias = random_inputs(known)
        apart = []
        for whole in (k, v):
            room = np.full((batch, SETS, past + new + 6, SIZE), np.nan, np.float32)
            room[:, :, : past + new] = whole
            apart.append(room[:, :, : past + new])
        outs = []
        for given in ((k, v), apart, (k, apart[1])):
            outs.append(np.empty(known.output.shape, np.float32))
            kernel(*map(tensor_of, (q, *given, bias, outs[-1])))
            np.testing.assert_array_equal(outs[-1], outs[0])
        # Sums of n products with probabilities; an exponential is off by a few roundings.
        bound = 4 * (past + new + SIZE + 8) * np.finfo(np.float32).eps * np.abs(v).max()
        assert np.abs(outs[0] - expected(known, [q, k, v, bias])).max() <= bound


def test_which_keys_may_have_room() -> None:
    assert reject_room(AttentionProblem(REGION), "k") is None
    rows = grown_region()
    strides = (SETS * PAST * SIZE, SIZE, 0, SETS * SIZE, 1)
    apart = rows.replace(attrs={**rows.attrs, "k_strides": strides})
    problem = AttentionProblem(apart)
    assert reject_room(problem, "k") == "rows of k are not contiguous"
    assert reject_room(problem, "v") is None
    q, k, v, bias = REGION.inputs
    more = REGION.replace(inputs=(q, k, f32(BATCH, SETS + 1, *v.shape[2:]), bias))
    assert reject_room(AttentionProblem(more), "v") == "v has more heads than the attention"

"""Contractions whose arrangement is chosen from outside."""

from __future__ import annotations

import numpy as np
from tvm import IRModule, relax, te

from relay_passes.ir.decisions import DecisionLog
from relay_passes.lift.emission import arranged_module, can_be_measured
from relay_passes.lift.lift_programs import lift_programs
from relay_passes.lower_module import arrangement_problems
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import TARGET, constant, module, run
from tests.tir_schedules.tensorize.programs import function, summed
from tir_schedules.tensorize.arrangement import (
    ArrangementChoice,
    ArrangementProblem,
    ChooseArrangement,
    KnownArrangement,
)

from .test_lift_programs import calling, randoms

op = relax.op
F = "float32"
INPUTS = ((8, 3, 4), F), ((8, 2, 5), F)


def einsum() -> IRModule:
    return module(lambda x, y: op.einsum((x, y), "kmi,knj->mnij"), *INPUTS)


def only_problem(mod: IRModule) -> ArrangementProblem:
    (found,) = arrangement_problems(mod, PipelineOptions(TARGET))
    return found


def saying(choice: ArrangementChoice) -> ChooseArrangement:
    return lambda _: KnownArrangement(choice, "record r.jsonl:1")


def test_every_candidate_computes_the_same() -> None:
    found = only_problem(einsum())
    assert can_be_measured(found)
    arrays = randoms(*INPUTS)
    expected = np.einsum("kmi,knj->mnij", *arrays)
    texts = set()
    for candidate in found.candidates:
        decisions: DecisionLog = []
        lifted = lift_programs(16, decisions, saying(found.choice(candidate)))(einsum())
        assert decisions[0].reason.endswith("; by record r.jsonl:1")
        texts.add(decisions[0].reason)
        alone = arranged_module(found, candidate, 16)
        for mod in (lifted, alone):
            np.testing.assert_allclose(run(mod, arrays)[0], expected, 1e-5, 1e-5)
    assert len(texts) == len(found.candidates)


def test_constants_and_bytes() -> None:
    weight = constant(16, 8)
    found = only_problem(module(lambda x: op.einsum([x, weight], "ik,jk->ji"), ((4, 8), F)))
    assert found.constants == (False, True) and found.key.endswith("constant right")
    assert len(arranged_module(found, found.candidates[0], 16)["main"].params) == 1

    def body(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return summed(
            (5, 7), (16,), lambda i, j, k: a[i, k].astype("int32") * b[k, j].astype("int32")
        )

    inputs = ((5, 16), "uint8"), ((16, 7), "int8")
    found = only_problem(calling(function(body, *inputs), ((5, 7), "int32"), *inputs))
    assert found.types == ("uint8", "int8", "int32")
    a, b = randoms(*inputs)
    for candidate in found.candidates:
        (result,) = run(arranged_module(found, candidate, 16), [a, b])
        np.testing.assert_array_equal(result, a.astype(np.int32) @ b.astype(np.int32))


def test_a_record_of_no_candidate_is_noted() -> None:
    decisions: DecisionLog = []
    lift_programs(16, decisions, saying(ArrangementChoice(False, "z", "", "", "")))(einsum())
    assert decisions[0].reason.endswith("record r.jsonl:1 names no candidate")

"""A contraction by itself, arranged in one way, as a module: for measuring."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from tvm import IRModule, relax

from tir_schedules.tensorize.arrangement import Arrangement, ArrangementProblem, KnownArrangement

from .emission import Emission
from .product import emit_contraction

_MEASURED = ("float32", "bfloat16", "uint8", "int8")


def can_be_measured(problem: ArrangementProblem) -> bool:
    """Whether there is a choice, of operands that are read as they are multiplied."""
    return problem.has_choice and all(each in _MEASURED for each in problem.types[:2])


def arranged_module(problem: ArrangementProblem, candidate: Arrangement, lanes: int) -> IRModule:
    """main(*operands), or less those that are constants, one dataflow block.

    Parameters
    ----------
    problem : ArrangementProblem
        One that `can_be_measured`.
    candidate : Arrangement
        One of its candidates.
    lanes : int
        As for `arrangements`.
    """
    given, rng = problem.contraction, np.random.default_rng(0)
    choice = problem.choice(candidate)
    block = Emission(lanes, lambda _: KnownArrangement(choice, "measuring"))
    operands: list[relax.Expr] = []
    inputs: list[relax.Var] = []
    both = zip((given.left, given.right), problem.types[:2], problem.constants, strict=True)
    for number, (labels, dtype, known) in enumerate(both):
        shape = [int(given.extents[label]) for label in labels]
        if known:
            kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
            operands.append(relax.const(rng.integers(0, 4, shape).astype(kind), dtype))
        else:
            inputs.append(relax.Var(f"x{number}", relax.TensorType(shape, dtype)))
            operands.append(inputs[-1])
    value, _ = emit_contraction(
        block, given, (operands[0], operands[1]), given.extents, problem.types[2]
    )
    result = relax.Var("result", block.builder.normalize(value).ty)
    block.bind(result, value)
    body = relax.SeqExpr([relax.DataflowBlock(block.bindings)], result)
    main = relax.Function(inputs, body, result.ty).with_attr("global_symbol", "main")
    return IRModule({"main": main})

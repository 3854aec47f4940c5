"""One after another: one kernel that runs others in turn, with what lies between them in its own
memory.

    def whole(A, B, C):
        lv = T.sblock_alloc_buffer((64, 32))
        with T.sblock("part0"): ...     # reads A, writes lv
        with T.sblock("part1"): ...     # reads lv and B, writes C
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import s_tir, tirx

from tir_schedules.core.statements import with_body
from tir_schedules.generic.expressions import const_int, substitute

from .side_by_side import nested


@dataclass(frozen=True)
class Step:
    """A kernel and what it works on.

    Attributes
    ----------
    function : PrimFunc
        What runs.
    buffers : tuple of Var
        A tensor for each of its parameters, of as many elements.
    """

    function: tirx.PrimFunc
    buffers: tuple[tirx.Var, ...]


def one_after_another(
    steps: Sequence[Step], params: Sequence[tirx.Var], between: Sequence[tirx.Var]
) -> tirx.PrimFunc:
    """One kernel that runs others in turn.

    Parameters
    ----------
    steps : sequence of Step
        A function may stand there several times.
    params : sequence of Var
        The tensors that it is given.
    between : sequence of Var
        Those that it needs besides.

    Returns
    -------
    PrimFunc
    """
    bodies = [_body(step, f"part{number}") for number, step in enumerate(steps)]
    whole = bodies[0] if len(bodies) == 1 else tirx.SeqStmt(bodies)
    root = s_tir.SBlock([], [], [], "root", whole, None, list(between))
    return tirx.PrimFunc(list(params), s_tir.SBlockRealize([], True, root))


def _body(step: Step, name: str) -> tirx.Stmt:
    """What a kernel does, of other tensors."""
    function = s_tir.renew_defs(step.function)
    same: dict[tirx.Var, tirx.Var] = {}
    views: list[tirx.Stmt] = []
    for param, buffer in zip(function.params, step.buffers, strict=True):
        if [*map(const_int, param.shape)] == [*map(const_int, buffer.shape)]:
            same[param] = buffer
        else:
            views.append(tirx.DeclBuffer(param, data=buffer.data))
    body = nested(substitute(function.body, same), name)
    if not views:
        return body
    block = body.block
    inside = tirx.SeqStmt([*views, block.body])
    return s_tir.SBlockRealize([], True, with_body(block, inside, block.annotations))

"""How TVM knows what is scheduled already, and which operators become programs."""

from __future__ import annotations

from tvm import ir

IS_SCHEDULED = "tirx.is_scheduled"
"""An attribute of programs that dlight and MetaScheduleApplyDatabase leave as they are."""

LEFT_ALONE = ("schedule_rule", "None")
"""An annotation of blocks, and its value, that MetaSchedule's rules leave as they are."""


def makes_a_program(op: ir.Op) -> bool:
    """Whether LegalizeOps makes a program of a Relax operator."""
    return op.get_attr("FLegalize") is not None

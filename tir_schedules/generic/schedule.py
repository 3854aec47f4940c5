"""Loops for every function that no template builds: vectorised, parallel, fused.

TVM lowers an operator to serial scalar loops. This schedule reads them as nests (what is computed,
not how), merges the nests, and writes new loops:

    for i, j in grid(128, 768): a[i, j] = x[i, j] + y[i, j]
    for i, j in grid(128, 768): z[i, j] = max(a[i, j], 0)

    ->  for f in parallel(6144):
            for v in vectorized(16): z[16 * f + v] = max(x[16 * f + v] + y[16 * f + v], 0)

Each rule either schedules a function or says why it cannot. The last rule takes every function and
leaves its loops as they are.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from tvm import DataType, s_tir, tirx

from microkernels.machines.machine import Machine

from .bands import program_loops
from .descending import ascending
from .expressions import substitute
from .fallback import loops_as_written, parallel_blocks
from .inline import merge_nests
from .names import names_in_memory
from .nest import NotHandledError
from .open_elements import open_elements
from .open_items import SCHEDULES_LEFT, open_items
from .open_reductions import open_reductions
from .open_rows import open_rows
from .open_transposes import open_transposes
from .read_program import read_program
from .whole_copy import whole_copy

logger = logging.getLogger("tvm_hybrid")

ERRORS_VARIABLE = "TVM_HYBRID_RULE_ERRORS"
"""With the value "raise", an error in a rule ends the compilation, as this project's tests want."""

Rule = Callable[[tirx.PrimFunc, Machine], tuple[tirx.PrimFunc, str]]


def _nests(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    return program_loops(merge_nests(read_program(func)), machine)


def _open_items(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    return open_items(func, machine, schedule_generic)


RULES: tuple[Rule, ...] = (
    _nests,
    whole_copy,
    open_transposes,
    open_elements,
    _open_items,
    open_rows,
    open_reductions,
    parallel_blocks,
    loops_as_written,
)


def schedule_generic(
    func: tirx.PrimFunc,
    machine: Machine,
    called: str = "an item",
    failed: list[str] | None = None,
) -> tuple[tirx.PrimFunc, str]:
    """Loops for a function, by the first rule that can write them.

    A rule refuses a function by a NotHandledError, or by TVM's ScheduleError. Every other error is
    a mistake in the rule.

    Parameters
    ----------
    func : tirx.PrimFunc
        As it comes out of FuseTIR.
    machine : Machine
        With one thread, no loop is parallel.
    called : str
        Its name, for the log; default: part of one that was named.
    failed : list of str or None
        Gets a text for each rule with a mistake, and the next rule takes the function: that is
        slower, not wrong. If None, or if `TVM_HYBRID_RULE_ERRORS` is "raise", the error is raised.

    Returns
    -------
    func : tirx.PrimFunc
        The same function with other loops.
    name : str
        "generic_injective", "generic_transpose", "generic_pool", "generic_reduction",
        "generic_blocks", or "generic_serial" for loops that stayed as they were; the reasons are
        logged.
    """
    func, refused = _aligned_to_elements(func), dict[str, None]()
    for rule in RULES:
        try:
            found, name = _settled(*rule(func, machine))
        except NotHandledError as reason:
            refused[str(reason)] = None
        except Exception as error:
            if rule is RULES[-1]:
                raise
            lines = str(error).splitlines() or [""]
            if isinstance(error, s_tir.ScheduleError):
                refused[f"TVM refuses the schedule of {rule.__name__}: {lines[0]}"] = None
                continue
            if failed is None or os.environ.get(ERRORS_VARIABLE) == "raise":
                raise
            failed.append(f"{rule.__name__.strip('_')} failed: {type(error).__name__}: {lines[-1]}")
            logger.warning("%s: %s", called, failed[-1], exc_info=True)
        else:
            break
    level = logging.INFO if name in SCHEDULES_LEFT else logging.DEBUG
    logger.log(level, "%s is %s: %s", called, name, "; ".join(refused))
    return found, name


def _settled(func: tirx.PrimFunc, name: str) -> tuple[tirx.PrimFunc, str]:
    return func.with_body(ascending(names_in_memory(func.body))), name


def _aligned_to_elements(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with parameters that need not be aligned to more than their elements.

    TVM promises LLVM 64 bytes unless told otherwise, and a caller's array may lie anywhere.
    """
    params = []
    for param in func.params:
        if not hasattr(param, "shape"):
            params.append(param)
            continue
        params.append(
            tirx.decl_buffer(
                param.shape,
                param.dtype,
                param.name,
                strides=param.strides,
                elem_offset=param.elem_offset,
                data_alignment=max(1, DataType(param.dtype).itemsize),
                offset_factor=param.offset_factor,
            )
        )
    values = dict(zip(func.params, params, strict=True))
    return tirx.PrimFunc(params, substitute(func.body, values), func.ret_type, func.attrs)

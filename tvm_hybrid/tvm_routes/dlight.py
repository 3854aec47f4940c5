"""Rules for TVM's dlight: schedules without tuning, for the programs of a legalised module.

    with target:
        mod = dl.ApplyDefaultSchedule(tvm_hybrid.dlight.Matmul(), tvm_hybrid.dlight.Generic())(mod)

A rule takes the programs that it knows and leaves the others to the next one. `tvm.compile` of the
module as it was before LegalizeOps, with our pipeline, is faster: it packs weights at compile time
and chooses layouts, which no rule for one program can do.
"""

from __future__ import annotations

import functools

from tvm import IRModule, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight import ScheduleRule
from tvm.target import Target

from microkernels.base.errors import ConfigError, TvmHybridError
from microkernels.base.logs import logger
from microkernels.machines.machine import Machine
from relay_passes.ir.functions import KERNEL
from relay_passes.lower.lower_regions import build_kernel
from tir_schedules.core.region import Tensor
from tir_schedules.core.template import template_for
from tir_schedules.generic.schedule import schedule_generic

from .metaschedule.schedule import schedule_product
from .metaschedule.space import machine_of
from .metaschedule.tiling import read_anchor, vector_configs
from .metaschedule.workload import first_line, normalized, region_of
from .tensorized import tensorize

__all__ = ["Generic", "Matmul"]

_NAME = "global_symbol"


class Matmul(ScheduleRule):
    """Products and convolutions, with the elementwise operators that are fused behind them.

    A product, of batches or not, gets the program of our template "batch_matmul": it packs the
    second operand while it runs, and has the epilogue in registers. What that does not know, such
    as convolutions (NHWC by HWIO, all channels), is tiled as it is around one of our microkernels.
    Everything else that multiplies two tensors is left to `tvm_hybrid.tensorize`.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> Schedule | None:
        """The program with other loops.

        Parameters
        ----------
        func : tirx.PrimFunc
            As LegalizeOps and FuseTIR make it.
        target : tvm.target.Target
            The CPU; its "num-cores" are the threads that the program is for.
        tunable : bool
            Either way nothing is left to decide.

        Returns
        -------
        Schedule or None
            None if it is no product that a kernel multiplies.
        """
        machine = _machine(func, target)
        if machine is None:
            return None
        program = normalized(func)
        reasons = []
        for make in (_by_template, _by_intrinsic, functools.partial(_by_roles, target)):
            try:
                return _in_place_of(func, make(program, machine))
            except TvmHybridError as error:
                reasons.append(str(error))
            except Exception as error:  # a primitive of TVM's that the program does not allow
                reasons.append(f"TVM refuses the schedule: {first_line(error)}")
        logger.info("dlight.Matmul leaves a program: %s", "; ".join(reasons))
        return None


class Generic(ScheduleRule):
    """All other programs: vectorised, parallel, their loops fused (`tir_schedules/generic`)."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> Schedule | None:
        """The program with other loops.

        Parameters
        ----------
        func : tirx.PrimFunc
            As LegalizeOps and FuseTIR make it.
        target : tvm.target.Target
            The CPU; its "num-cores" are the threads that the program is for.
        tunable : bool
            Either way nothing is left to decide.

        Returns
        -------
        Schedule or None
            None if the target is no CPU.
        """
        machine = _machine(func, target)
        if machine is None:
            return None
        scheduled, name = schedule_generic(func, machine, failed=[])  # the log has what fails
        return _in_place_of(func, scheduled.with_attr(KERNEL, name))


def _machine(func: tirx.PrimFunc, target: Target) -> Machine | None:
    """The machine that a program is for; None if it is no program for a CPU."""
    if not isinstance(func, tirx.PrimFunc) or target.kind.name != "llvm":
        return None
    return _of_target(target)


_of_target = functools.lru_cache(maxsize=8)(machine_of)


def _by_template(program: IRModule, machine: Machine) -> tirx.PrimFunc:
    """The program of our template; ConfigError if it has none."""
    region = region_of(program)
    if region.op not in ("matmul", "batch_matmul"):
        raise ConfigError(f"a {region.op}, whose template wants its weight packed")
    # The second operand is known at run time only.
    left, right = (Tensor(tensor.shape, tensor.dtype) for tensor in region.inputs)
    axes = {"a_axes": tuple(range(len(left.shape))), "b_axes": tuple(range(len(right.shape)))}
    region = region.replace(op="batch_matmul", inputs=(left, right), attrs=axes)
    template = template_for(region.op)
    reason = template.rejection(region, machine.isa)
    if reason is not None:
        raise ConfigError(reason)
    return build_kernel(region, template.default_config(region, machine), machine)


def _by_intrinsic(program: IRModule, machine: Machine) -> tirx.PrimFunc:
    """The program tiled around a microkernel; ConfigError if no tile fits."""
    reasons: dict[str, None] = {}
    for config in vector_configs(read_anchor(Schedule(program)), machine):
        schedule = Schedule(program)
        try:
            tiling = schedule_product(schedule, config)
        except ConfigError as error:
            reasons[str(error)] = None
        else:
            return schedule.mod["main"].with_attr(KERNEL, tiling.kernel.name)
    raise ConfigError("; ".join(reasons))


def _by_roles(target: Target, program: IRModule, machine: Machine) -> tirx.PrimFunc:
    """The program with its products by the roles of their axes; CompileError if it has none."""
    made = tensorize(program["main"], target=target, num_threads=machine.threads)
    assert isinstance(made, tirx.PrimFunc)
    return made


def _in_place_of(func: tirx.PrimFunc, made: tirx.PrimFunc) -> Schedule:
    """A schedule that is done, of a program with the name of the given one, if that has one."""
    attrs = {**func.attrs, **made.without_attr(_NAME).attrs}
    return Schedule(IRModule({"main": made.without_attr(_NAME).with_attrs(attrs)}))

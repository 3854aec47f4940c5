"""Rules for TVM's dlight: schedules without tuning for the programs of a legalised module.

    with target:
        mod = dl.ApplyDefaultSchedule(tvm_hybrid.dlight.Matmul(), tvm_hybrid.dlight.Generic())(mod)

A rule takes the programs that it knows and leaves the others to the next rule. Compiling the module
with our pipeline, before LegalizeOps, is faster: it packs weights at compile time and chooses
layouts, which no rule for one program can do.
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

from ..targets.build_check import with_needs_by_name
from .metaschedule.schedule import schedule_product
from .metaschedule.space import machine_of
from .metaschedule.tiling import read_anchor, vector_configs
from .metaschedule.workload import first_line, normalized, region_of
from .tensorized import tensorize

__all__ = ["Generic", "Matmul"]

_NAME = "global_symbol"


class Matmul(ScheduleRule):
    """Products and convolutions, with the elementwise operators that are fused behind them.

    A product, batched or not, gets the program of our template "batch_matmul", which packs the
    second operand at run time and computes the epilogue in registers. Products that the template
    rejects, and convolutions (NHWC by HWIO, one group), are tiled in place around a microkernel.
    All other programs that multiply two tensors go to `tvm_hybrid.tensorize`.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> Schedule | None:
        """Schedules a program.

        Parameters
        ----------
        func : tirx.PrimFunc
            As LegalizeOps and FuseTIR make it.
        target : tvm.target.Target
            The CPU; its "num-cores" are the threads that the program may use.
        tunable : bool
            Ignored: the schedule has no tunable decisions.

        Returns
        -------
        Schedule or None
            None if the program is no product that a kernel multiplies.
        """
        machine = _machine(func, target)
        if machine is None:
            return None
        program = normalized(func)
        reasons = []
        for make in (_by_template, _by_intrinsic, functools.partial(_by_roles, target)):
            try:
                made = make(program, machine)
                return _in_place_of(func, with_needs_by_name(made, target, str(made.attrs[KERNEL])))
            except TvmHybridError as error:
                reasons.append(str(error))
            except Exception as error:  # TVM refuses a schedule primitive
                reasons.append(f"TVM refuses the schedule: {first_line(error)}")
        logger.info("dlight.Matmul leaves a program: %s", "; ".join(reasons))
        return None


class Generic(ScheduleRule):
    """All other programs: vectorised, parallel, their loops fused (`tir_schedules/generic`)."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> Schedule | None:
        """Schedules a program.

        Parameters
        ----------
        func : tirx.PrimFunc
            As LegalizeOps and FuseTIR make it.
        target : tvm.target.Target
            The CPU; its "num-cores" are the threads that the program may use.
        tunable : bool
            Ignored: the schedule has no tunable decisions.

        Returns
        -------
        Schedule or None
            None if the target is not a CPU.
        """
        machine = _machine(func, target)
        if machine is None:
            return None
        scheduled, name = schedule_generic(func, machine, failed=[])  # failures are in the log
        made = with_needs_by_name(scheduled.with_attr(KERNEL, name), target, name)
        return _in_place_of(func, made)


def _machine(func: tirx.PrimFunc, target: Target) -> Machine | None:
    """The machine that a program is for; None if `func` is no TIR function for a CPU."""
    if not isinstance(func, tirx.PrimFunc) or target.kind.name != "llvm":
        return None
    return _of_target(target)


_of_target = functools.lru_cache(maxsize=8)(machine_of)


def _by_template(program: IRModule, machine: Machine) -> tirx.PrimFunc:
    """The kernel that our template builds; ConfigError if no template fits."""
    region = region_of(program)
    if region.op not in ("matmul", "batch_matmul"):
        raise ConfigError(f"a {region.op}, whose template wants its weight packed")
    # The template batch_matmul takes a second operand that is not a constant.
    left, right = (Tensor(tensor.shape, tensor.dtype) for tensor in region.inputs)
    axes = {"a_axes": tuple(range(len(left.shape))), "b_axes": tuple(range(len(right.shape)))}
    region = region.replace(op="batch_matmul", inputs=(left, right), attrs=axes)
    template = template_for(region.op)
    reason = template.rejection(region, machine.isa)
    if reason is not None:
        raise ConfigError(reason)
    return build_kernel(region, template.default_config(region, machine), machine)


def _by_intrinsic(program: IRModule, machine: Machine) -> tirx.PrimFunc:
    """Tiles the program around a microkernel; ConfigError if no tile fits."""
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
    """The program by `tensorize`; CompileError if it has no product for our kernels."""
    made = tensorize(program["main"], target=target, num_threads=machine.threads)
    assert isinstance(made, tirx.PrimFunc)
    return made


def _in_place_of(func: tirx.PrimFunc, made: tirx.PrimFunc) -> Schedule:
    """A finished schedule of `made`, with the name and attributes of the given program."""
    attrs = {**func.attrs, **made.without_attr(_NAME).attrs}
    return Schedule(IRModule({"main": made.without_attr(_NAME).with_attrs(attrs)}))

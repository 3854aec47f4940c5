"""MetaSchedule's search space for a target, with our microkernels in it.

Before: a program that TVM's rules split loop by loop

    for i, j, k in T.grid(128, 512, 384): ...             # a product
    for i, j in T.grid(128, 512): ...                     # bias, relu, ...

After `TensorizedProducts`: one program for each of the fastest microkernels

    v0, v1 = sch.sample_perfect_tile(blocks of rows, decision=[2, 8])
    ...
    sch.tensorize(rows, "tvm_hybrid.avx512_f32_8x32.8x32x384")

MetaSchedule's search changes the decisions: blocks of rows, and for a convolution also bands of
lines.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tvm import IRModule, ir, relax, tirx
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.database import JSONDatabase
from tvm.s_tir.meta_schedule.mutator import Mutator
from tvm.s_tir.meta_schedule.postproc import Postproc, RewriteTensorize
from tvm.s_tir.meta_schedule.schedule_rule import PyScheduleRule, ScheduleRule
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply
from tvm.target import Target

from microkernels.base.errors import ConfigError, RecordError
from microkernels.base.logs import logger
from microkernels.base.tvm_compat import metaschedule_database as databases
from microkernels.base.tvm_compat.relax import OP_PATTERN
from microkernels.machines.machine import Machine
from microkernels.tensorize.tensor_intrin import register_tensor_intrin
from relay_passes.ir.graph import nodes_in

from ...runtime.threads import default_threads
from ...targets.resolve import TargetLike, resolve_target
from .schedule import register_intrinsic, schedule_product
from .tiling import Block, ProgramAnchor, read_anchor, tiling_of, vector_configs
from .workload import LAYOUT_FREE, first_line, legalized, normalized

SPACES = 4  # microkernels that a program is tried with
_KIND = "llvm"


def space_generator(target: TargetLike = None, spaces: int = SPACES) -> PostOrderApply:
    """A search space for `tune_tir`, `tune_relax` and `TuneContext`, as their argument `space`.

    It has TVM's own rules for CPUs, and before them a rule that builds products and convolutions
    around our microkernels. Programs that this rule does not take get TVM's rules.

    Parameters
    ----------
    target : str, mapping, tvm.target.Target or None
        The CPU; None for this one. Its "num-cores" are the threads that programs may use.
    spaces : int
        Number of microkernels that get a space of their own, the fastest estimated first.

    Returns
    -------
    tvm.s_tir.meta_schedule.space_generator.PostOrderApply

    Raises
    ------
    TargetError
        If the target makes no sense.
    """
    rules = [TensorizedProducts(machine_of(resolve_target(target)), spaces)]
    return PostOrderApply(
        sch_rules=[*rules, *ScheduleRule.create(_KIND)],
        postprocs=[*Postproc.create(_KIND), RewriteTensorize()],
        mutator_probs=Mutator.create(_KIND),
    )


def tensor_intrinsic(
    m: int,
    n: int,
    k: int,
    a_dtype: str = "float32",
    b_dtype: str = "float32",
    target: TargetLike = None,
    groups: bool = False,
) -> str:
    """Registers the best microkernel for a product, for `sch.tensorize` and TVM's rules.

    Parameters
    ----------
    m, n, k : int
        Rows, columns and depth of the product. The intrinsic's tile divides m and n, and has all k.
    a_dtype, b_dtype : str
        Types of the operands.
    target : str, mapping, tvm.target.Target or None
        The CPU; None for this one.
    groups : bool
        For kernels that take kr values of k at a time (bfloat16, 8-bit integers), which must be
        adjacent in memory. True: the program has a loop over groups of k and a loop inside each
        group, C[i, j] += A[i, g, s] * B[g, j, s], the only form that `MultiLevelTilingWithIntrin`
        takes. False: one loop, C[i, j] += A[i, k] * B[k // kr, j, k % kr], for `sch.tensorize`.

    Returns
    -------
    str
        The intrinsic's name, such as "tvm_hybrid.avx512_f32_8x48.8x48x384".
        `TensorIntrin.get(name).desc` is what it computes.

    Raises
    ------
    ConfigError
        If no kernel multiplies these types, or no tile divides the product.
    TargetError
        If the target makes no sense.
    """
    accumulators = "float32" if b_dtype in ("float32", "bfloat16") else "int32"
    product = ProgramAnchor(m=m, n=n, k=k, dtypes=(a_dtype, b_dtype, accumulators))
    config, *_ = vector_configs(product, machine_of(resolve_target(target)))
    tiling = tiling_of(config, m, n, k, product.may_pad)
    return register_tensor_intrin(tiling.kernel, tiling.rows, tiling.columns, k, groups)


def machine_of(target: Target) -> Machine:
    """The machine of a target, with one thread for each core."""
    return Machine.from_target(target, int(target.attrs.get("num-cores", 0)) or default_threads())


@derived_object
class TensorizedProducts(PyScheduleRule):
    """Schedules a program's product or convolution around our microkernels.

    Parameters
    ----------
    machine : Machine
        The machine that programs are for.
    spaces : int
        At most this many schedules for one program.
    """

    def __init__(self, machine: Machine, spaces: int) -> None:
        super().__init__()
        self.machine, self.spaces = machine, spaces

    def _initialize_with_tune_context(self, context: Any) -> None:
        """Does nothing: the target is known already."""

    def apply(self, sch: Schedule, block: Block) -> list[Schedule]:
        """The schedules, or the given one if the block is not taken."""
        try:
            anchor = read_anchor(Schedule(sch.mod))  # a copy, as reading adds to the trace
            if str(sch.get(block).name_hint) != anchor.name:
                return [sch]
            configs = vector_configs(anchor, self.machine)
        except ConfigError:
            return [sch]
        found: dict[tuple[int, int, int], Schedule] = {}
        for config in configs:
            copy = sch.copy()
            try:
                tiling = schedule_product(copy, config, sampled=True)
            # TVM refuses a schedule primitive, or no tile fits: try the next kernel.
            except Exception as error:
                logger.debug("no space with %s: %s", config.kernel, first_line(error))
                continue
            # Keeps later rules from changing it. The root comes last: see docs/extending/traps.md.
            root = copy.get_sblock("root")
            for each in (*copy.get_child_blocks(root), root):
                copy.annotate(each, *databases.LEFT_ALONE)
            # Two kernels may give equal schedules if their tiles shrink.
            found.setdefault((tiling.rows, tiling.columns, tiling.k), copy)
            if len(found) == self.spaces:
                break
        return [*found.values()] or [sch]

    def clone(self) -> Any:
        """A copy; MetaSchedule gives one to each of its threads."""
        return TensorizedProducts(self.machine, self.spaces)


def register_intrinsics(work_dir: str | os.PathLike[str]) -> list[str]:
    """Registers, for this process, the microkernels that a database's traces name.

    Parameters
    ----------
    work_dir : path-like
        The database's folder.

    Returns
    -------
    list of str
        The tensor intrinsics' names.

    Raises
    ------
    RecordError
        If there is no such database.
    IsaError
        If a trace names a tile that no microkernel has.
    """
    entries = databases.MetaScheduleFolder(Path(work_dir)).entries
    names = dict.fromkeys(name for entry in entries for name in entry.intrinsics)
    return [name for name in names if register_intrinsic(name)]


def apply_database(
    mod: IRModule, work_dir: str | os.PathLike[str], target: TargetLike = None
) -> IRModule:
    """Replaces programs of a module by a database's; then compile with `tvm.compile(mod, target)`.

    Parameters
    ----------
    mod : IRModule
        A module of Relax operators, or one that is legalised and fused already. Constant weights
        are packed at compile time if the database has such a program.
    work_dir : path-like
        The database's folder, written by `tvm-hybrid records export` or by MetaSchedule.
    target : str, mapping, tvm.target.Target or None
        The CPU; None for this one.

    Returns
    -------
    IRModule
        Calls of programs. A program that the database lacks stays as it is; dlight's rules can
        schedule it, and leave the replaced programs alone.

    Raises
    ------
    RecordError
        If there is no such database, or TVM cannot read it.
    IsaError
        If a trace names a tile that no microkernel has.
    TargetError
        If the target makes no sense.
    """
    register_intrinsics(work_dir)
    resolved = resolve_target(target)
    with resolved:
        functions = [each for _, each in mod.functions_items() if isinstance(each, relax.Function)]
        called = (getattr(node, "op", None) for each in functions for node in nodes_in(each))
        if any(isinstance(op, ir.Op) and databases.makes_a_program(op) for op in called):
            mod = legalized(mod)
        try:
            database = JSONDatabase(work_dir=str(work_dir))
        except Exception as error:
            raise RecordError(
                f"TVM cannot read the database in {work_dir}: {first_line(error)}"
            ) from error
        found = _replaced(mod, database, resolved)
        if not found:
            return mod
        # Packing of constants becomes separate programs, and then constants.
        passes = [
            relax.transform.SplitLayoutRewritePreproc(),
            relax.transform.FoldConstant(),
            relax.transform.DeadCodeElimination(),
        ]
        return ir.transform.Sequential(passes)(found)


def _replaced(mod: IRModule, database: JSONDatabase, target: Target) -> IRModule | None:
    """The module with the database's programs in it; None if the database has none of them."""
    mod = relax.transform.AttachAttrLayoutFreeBuffers()(mod)
    updated = IRModule(dict(mod.functions_items()), attrs=mod.attrs)
    found = False
    for gvar, function in mod.functions_items():
        if not isinstance(function, tirx.PrimFunc) or databases.IS_SCHEDULED in function.attrs:
            continue
        name, plain = str(gvar.name_hint), _without(function, LAYOUT_FREE)
        # The database may have weights as constants or not, and programs with or without the kind
        # of operator that AnnotateTIROpPattern adds.
        for names in ((), (OP_PATTERN,), (LAYOUT_FREE,), (OP_PATTERN, LAYOUT_FREE)):
            if not all(each in function.attrs for each in names):
                continue
            form = _without(function, *names)
            made = database.query_ir_module(normalized(form), target, name)
            if made is not None:
                found = True
                program = _without(made["main"], LAYOUT_FREE, "global_symbol")
                plain = program.with_attrs({**plain.attrs, databases.IS_SCHEDULED: True})
                break
        updated.update_func(gvar, plain)
    return updated if found else None


def _without(function: tirx.PrimFunc, *names: str) -> tirx.PrimFunc:
    for name in names:
        if name in function.attrs:
            function = function.without_attr(name)
    return function

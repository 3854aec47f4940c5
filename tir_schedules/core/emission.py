"""What every template's `build` puts around its loops: function, parameters, tasks, blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import tvm.tirx.script.builder.ir as I
from tvm import tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.base.tvm_compat.tir import NO_ALIAS
from microkernels.vector.expressions import Expr, bind, parameter

from .extents import buffer_shape, extent_scope
from .region import Region, Tensor

EXACT_BUFFERS = "tvm_hybrid.exact_buffers"
"""Attribute of a function whose buffers TVM shall leave as they are: templates allocate what they
need. To find out which part of them is used takes half of the time of TVM's passes on unrolled
code, and minutes where sizes are expressions."""


@contextmanager
def kernel_function(name: str) -> Iterator[IRBuilder]:
    """The function under construction; `get` of what comes out returns it, after the scope."""
    with IRBuilder() as builder, I.prim_func(s_tir=True), extent_scope():
        I.func_name(name)
        I.func_attr({**NO_ALIAS, EXACT_BUFFERS: True})
        yield builder


@contextmanager
def opaque_block(name: str) -> Iterator[None]:
    """A block with empty lists of what it reads and writes, so that TVM looks for none itself."""
    with I.sblock(name):
        I.reads()
        I.writes()
        yield


ALONE = "tvm_hybrid_alone"
"""Attribute around a parallel loop: the condition under which one thread runs all of it."""


@contextmanager
def task_loop(
    tasks: int | Expr,
    parallel: bool = True,
    name: str = "task",
    threads: int = 0,
    alone: Expr | None = None,
) -> Iterator[Expr]:
    """A loop over tasks, each an opaque block; on all threads if there are several.

    With `threads`, so many share the tasks, as evenly as can be, and others get none. TVM alone
    gives each thread the same number of tasks, rounded up, and so to some threads none.

    `alone` is a condition under which one thread runs them all, of open sizes; the lowering pass
    `launch_few` sees to that.
    """
    known = isinstance(tasks, int)
    if not parallel or not known or tasks == 1 or not 0 < threads < tasks:
        forks = parallel and (not known or tasks > 1)
        with ExitStack() as scope:
            if forks and alone is not None:
                scope.enter_context(I.attr(tirx.const(0, "int32"), ALONE, alone))
            task = scope.enter_context(I.parallel(tasks) if forks else I.serial(tasks))
            scope.enter_context(opaque_block(name))
            yield task
        return
    with I.parallel(threads) as thread, opaque_block("thread"):
        first = bind(I.floordiv(thread * tasks, threads))
        end = I.floordiv((thread + 1) * tasks, threads)
        with I.serial(end - first) as number, opaque_block(name):
            yield first + number


def tensor_parameter(name: str, tensor: Tensor) -> Expr:
    """A parameter of the function under construction, for a tensor as it is."""
    return parameter(name, buffer_shape(tensor.shape), tensor.dtype)


def input_parameters(region: Region, first: int = 0) -> list[Expr]:
    """The parameters for a region's inputs from the number `first` on, as they are."""
    tensors = enumerate(region.inputs[first:], first)
    return [tensor_parameter(f"input{i}", tensor) for i, tensor in tensors]


def operand_parameters(region: Region) -> list[Expr]:
    """The parameters for a region's operands."""
    return [tensor_parameter(f"operand{i}", tensor) for i, tensor in enumerate(region.operands)]

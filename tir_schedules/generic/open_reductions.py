"""Reductions of tensors with open sizes, in vectors.

    for i, k in grid(n, m): y[i] += x[i, k]

    ->  for i: four accumulators of vectors; what is left of k, one by one; add the lanes up

    for k, j in grid(m, n): y[j] += x[k, j]

    ->  for j: y[j] = 0
        for k: for j: y[j] += x[k, j]                LLVM makes vectors of it

Loops stand in that order where neighbours of the result read neighbours. TVM's order, the reduced
axis innermost, jumps from row to row, and LLVM may not reorder a sum of floats.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir.expr import TensorLoad

from microkernels.machines.machine import Machine

from .accumulators import along_results
from .combine import COMBINE
from .elementwise import lanes_for
from .expressions import calls_of, loads_of
from .loops import (
    flattened,
    parameter_views,
    temporary_view,
    with_statements,
)
from .nest import Nest, NotHandledError
from .open_elements import element_loops
from .open_nests import open_nests, over_axes, step_along, with_fewer_reduced
from .open_window_loops import window_loops
from .open_windows import windows_of
from .reduction_rows import open_row
from .selects import with_selects


def open_reductions(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """Loops for a function that reduces, alone or with what is computed of the result.

    Raises
    ------
    NotHandledError
        If all sizes are known, or it is no such function.
    """
    program = open_nests(func)
    if not any(nest.reduce for nest in program.nests):
        raise NotHandledError("it reduces nothing")
    views, statements = parameter_views(func)
    kept = {store.buffer for nest in program.nests for store in nest.results}
    for buffer in program.temporaries:
        views[buffer] = temporary_view(buffer)
        if buffer in kept:
            statements.append(tirx.AllocBuffer(views[buffer].flat))
    for nest in program.nests:
        flat = flattened(nest if nest.reduce else with_selects(nest), views)
        statements.append(_loops(flat, machine) if nest.reduce else element_loops(flat, machine))
    return with_statements(func, statements), "generic_reduction"


def _loops(nest: Nest, machine: Machine) -> tirx.Stmt:
    windows = windows_of(nest)
    if windows is not None:
        return window_loops(windows, machine)
    nest = with_fewer_reduced(nest)
    own = {store.buffer for store in nest.stores}
    for store in nest.stores:
        value = store.value
        if type(value) not in COMBINE or store.init is None or nest.lets:
            raise NotHandledError(f"{nest.name} is no plain reduction")
        if not isinstance(value.a, TensorLoad) or value.a.source not in own:
            raise NotHandledError(f"{nest.name} does not add to what it has")
        if any(load.source in own for load in loads_of(value.b)):
            raise NotHandledError(f"{nest.name} reads what it reduces")
        if calls_of(value.b, "if_then_else"):
            raise NotHandledError(f"{nest.name} chooses what it reads")
    loads = [load for store in nest.stores for load in loads_of(store.value.b)]
    lanes = lanes_for(nest, machine)
    for axis in reversed(nest.reduce):
        steps = [step_along(nest, load.indices[0], axis) for load in loads]
        if lanes > 1 and 1 in steps and all(step in (0, 1) for step in steps):
            return over_axes(nest.spatial, open_row(nest, axis, lanes), machine)
    for axis in nest.spatial[-1:]:
        steps = [step_along(nest, load.indices[0], axis) for load in loads]
        written = [step_along(nest, store.indices[0], axis) for store in nest.results]
        if all(step in (0, 1) for step in steps) and set(written) == {1}:
            return over_axes(nest.spatial[:-1], along_results(nest, axis), machine)
    raise NotHandledError(f"{nest.name} reads no neighbours")

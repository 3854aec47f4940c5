"""Adds an entry that lets go of the last results, to programs whose results are large.

Before

    def main(x): ...

After, in addition

    def tvm_hybrid_release():
        return ()

TVM's virtual machine keeps what the last function returned until the next one has ended. So runs
that follow each other write to two memories in turns, which need twice as much cache. After a call
of this entry the next run writes where the last one did, if its caller has dropped the results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import DataType, IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext, module_pass

from relay_passes.ir.entries import MAIN, RELEASE_ENTRY

LEAST_BYTES = 1 << 17  # of all results: what is below stays in L2 either way
_SAMPLE = 256  # of a dynamic dimension


def release_entry() -> ir.transform.Pass:
    """The pass; it comes before memory is planned."""

    @module_pass(opt_level=0, name="tvm_hybrid.release_entry")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        names = [gvar.name_hint for gvar in mod.get_global_vars()]
        if MAIN not in names or RELEASE_ENTRY in names:
            return mod
        result = mod[MAIN].ret_ty
        fields = result.fields if isinstance(result, relax.TupleType) else [result]
        if sum(map(_bytes, fields)) < LEAST_BYTES:
            return mod
        builder = relax.BlockBuilder(mod)
        with builder.function(RELEASE_ENTRY, []):
            builder.emit_func_output(relax.Tuple([]))
        return builder.get()

    return run


def _bytes(field: ir.Type) -> int:
    """Size of a result; with a sample in place of dimensions that are not known."""
    if not isinstance(field, relax.TensorType) or field.shape is None or not field.dtype:
        return 0
    sizes: Sequence[ir.Expr] = field.shape.values
    known = (int(each.value) if isinstance(each, tirx.IntImm) else _SAMPLE for each in sizes)
    return math.prod(known) * int(DataType(str(field.dtype)).itemsize)

"""Adds an entry that hands out the large constants of a model: whoever loads it may place them.

Before

    def main(x): ... lv = R.call_tir(kernel, (x, packed), ...) ...

After, in addition

    def tvm_hybrid_weights():
        gv = (packed, ...)
        return gv
"""

from __future__ import annotations

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from relay_passes.ir.constants import bytes_of, constants_of
from relay_passes.ir.entries import WEIGHTS_ENTRY

LEAST_BYTES = 1 << 14  # a few pages: less is not worth placing


def weights_entry() -> ir.transform.Pass:
    """The pass; it comes when constants are as kernels read them."""

    @module_pass(opt_level=0, name="tvm_hybrid.weights_entry")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        large = [each for each in constants_of(mod) if bytes_of(each.value) >= LEAST_BYTES]
        if not large or WEIGHTS_ENTRY in [gvar.name_hint for gvar in mod.get_global_vars()]:
            return mod
        builder = relax.BlockBuilder(mod)
        with builder.function(WEIGHTS_ENTRY, []):
            builder.emit_func_output(builder.emit(relax.Tuple(large)))
        return builder.get()

    return run

"""Checks first: moves checks of sizes to the beginning of their block.

Before

    lv = R.nn.relu(x)                                   # x: [n, 4]
    lv1: R.Shape([1]) = R.match_cast(R.shape([T.Select(n <= 512, 1, 0)]), R.Shape([1]))
    lv2 = R.exp(lv)

After

    lv1: R.Shape([1]) = R.match_cast(R.shape([T.Select(n <= 512, 1, 0)]), R.Shape([1]))
    lv = R.nn.relu(x)
    lv2 = R.exp(lv)

A check ends a dataflow block, and regions stay within one. The size that is wanted may also be an
expression of those of the inputs. Checks of sizes that data decide stay where they are.
"""

from __future__ import annotations

import tvm_ffi
from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext, module_pass

from relay_passes.ir.graph import AnyBinding
from relay_passes.ir.rewrite import is_relax, map_functions, with_blocks


def checks_first() -> ir.transform.Pass:
    """The pass; it comes before dataflow blocks are formed."""

    @module_pass(opt_level=0, name="tvm_hybrid.checks_first")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        return map_functions(mod, is_relax, _rewritten)

    return run


def _rewritten(function: relax.Function) -> relax.Function:
    known = {var for param in function.params for var in _variables(param.ty)}
    return with_blocks(function, [_reordered(block, known) for block in function.body.blocks])


def _reordered(block: relax.BindingBlock, known: set[tirx.Var]) -> relax.BindingBlock:
    """A block whose checks of known sizes come first, with the shapes that they read."""
    shapes: dict[relax.Expr, AnyBinding] = {}
    first: list[AnyBinding] = []
    for binding in block.bindings:
        value = binding.value
        if isinstance(value, relax.ShapeExpr) and _variables(value) <= known:
            shapes[binding.var] = binding
        elif isinstance(binding, relax.MatchCast) and value in shapes and _is_known(binding, known):
            first += [each for each in (shapes[value], binding) if each not in first]
    kept = [binding for binding in block.bindings if binding not in first]
    return type(block)(first + kept) if first else block


def _is_known(binding: relax.MatchCast, known: set[tirx.Var]) -> bool:
    """Whether a shape is compared with one of known sizes, and tells no variable."""
    return isinstance(binding.ty, relax.ShapeType) and _variables(binding.ty) <= known


def _variables(value: object) -> set[tirx.Var]:
    """The variables in a type or a shape."""
    found: set[tirx.Var] = set()
    tvm_ffi.structural_walk(value, (tirx.Var, found.add))
    return found

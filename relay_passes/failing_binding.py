"""Finds the binding of a module at which a pass fails, for messages.

A pass of TVM's says neither the function nor the operator that it fails at. The pass is run anew on
the beginning of main, cut behind the first k bindings: the least k at which it fails with the same
message tells the binding. Nothing is found if the failing pass has taken the module apart.
"""

from __future__ import annotations

from tvm import IRModule, relax
from tvm.ir.transform import Pass

from microkernels.base.errors import CompileError, TvmHybridError
from microkernels.base.tvm_compat.relax import set_type

from .ir.entries import MAIN
from .ir.rewrite import is_relax, with_body


def compile_error(mod: IRModule, failed: Pass, error: Exception) -> CompileError:
    """The error to raise where a pass failed on a module with an error that is not ours."""
    name = str(failed.info.name)
    found = failing_binding(mod, failed, error)
    place = "" if found is None else f" at {found}"
    return CompileError(f"pass {name} fails{place}: {first_line(error)}")


def failing_binding(mod: IRModule, failed: Pass, error: Exception) -> str | None:
    """The name of the variable that is bound where a pass fails; None if it cannot be told."""
    main = next((g for g in mod.get_global_vars() if str(g.name_hint) == MAIN), None)
    if main is None or not is_relax(mod[main]):
        return None
    function, functions = mod[main], dict(mod.functions_items())
    bindings = [each for block in function.body.blocks for each in block.bindings]

    def fails(count: int) -> bool:
        part = IRModule({**functions, main: _beginning(function, count)}, mod.attrs)
        try:
            failed(part)
        except TvmHybridError:
            return False
        except Exception as other:  # of any kind, as the first one
            return first_line(other) == first_line(error)
        return False

    low, high = 0, len(bindings)
    if not high or not fails(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return str(bindings[high - 1].var.name)


def first_line(error: Exception) -> str:
    """What an error says, without what follows."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _beginning(function: relax.Function, count: int) -> relax.Function:
    """A function that ends behind so many bindings, and returns what the last one binds."""
    blocks, last = [], None
    for block in function.body.blocks:
        kept = list(block.bindings[:count])
        count -= len(kept)
        if not kept:
            break
        last = kept[-1].var
        if isinstance(last, relax.DataflowVar):
            result = relax.Var("result", last.ty)
            kept.append(relax.VarBinding(result, last))
            last = result if not count else last
        blocks.append(type(block)(kept))
    assert last is not None
    body = relax.SeqExpr(blocks, last)
    set_type(body, last.ty)
    return with_body(function, body)

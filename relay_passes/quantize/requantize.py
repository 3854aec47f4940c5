"""Requantise: replaces the scaling and quantising of an integer sum by one or two factors.

Before, the region of a call

    matmul(..) cast(acc) multiply(%0, scales) quantize(%1, 0.0371, 131):uint8

After, if that is proven to give the same integers for every possible sum

    matmul(..) requantize(acc, 131, factors):uint8

An int32 bias is added first in both forms. The function keeps its operators, which state its
meaning; constants that the kernel no longer reads move into it. The factors are parameters that
only the kernel reads. A chain for which no proof is found stays as it is: see
requantize_factors.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from relay_passes.ir.region_functions import emit_body, region_function, region_of
from relay_passes.ir.rewrite import rewrite_region_calls
from tir_schedules.core.region import Region, Step, Tensor

from .requantize_chain import RequantizingChain, bounds_of_sums, requantizing_chain
from .requantize_factors import find_factors, staircase


def requantize() -> ir.transform.Pass:
    """The pass, for a partitioned module whose weights are not packed yet."""

    @module_pass(opt_level=0, name="tvm_hybrid.requantize")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        builder = relax.BlockBuilder(mod)
        changed = False

        def with_factors(binding: relax.VarBinding, function: relax.Function) -> relax.Expr:
            call = binding.value
            region = region_of(function)
            found = _requantizing(region, list(call.args))
            if found is None:
                return call
            nonlocal changed
            changed = True
            gvar = builder.add_func(
                _with_constants(function, region, list(call.args), found), call.op.name_hint
            )
            inputs = len(region.inputs)
            kept = [call.args[inputs + number] for number in found.kept]
            factors = [relax.const(factor) for factor in found.factors]
            return relax.Call(gvar, [*call.args[:inputs], *kept, *factors], ret_ty=call.ty)

        written = rewrite_region_calls(mod, builder, with_factors)
        return relax.transform.DeadCodeElimination()(written) if changed else mod

    return run


@dataclass(frozen=True)
class _Requantizing:
    """A changed region: it, the operands that it keeps, and the factors that are operands."""

    region: Region
    kept: list[int]
    factors: list[np.ndarray]


def _requantizing(region: Region, arguments: list[relax.Expr]) -> _Requantizing | None:
    """The region with factors; None if there are none that are proven to do."""
    chain = requantizing_chain(region, arguments)
    bounds = None if chain is None else bounds_of_sums(region, arguments)
    if chain is None or bounds is None:
        return None
    low, high = (side + chain.shift for side in bounds)
    if chain.columns == 1:
        low, high = low.min(keepdims=True), high.max(keepdims=True)
    if low.min() < -(2**31) or high.max() >= 2**31:
        return None
    slope, zero_point = np.broadcast_to(chain.slope, low.shape), chain.zero_point
    stairs = staircase(chain.evaluate, slope, low, high, chain.dtype, zero_point)
    factors = None if stairs is None else find_factors(stairs, low, high, zero_point)
    return None if factors is None else _with_factors(region, chain, factors)


def _with_factors(
    region: Region, chain: RequantizingChain, factors: tuple[np.ndarray, ...]
) -> _Requantizing:
    """The region whose steps are the biases and the requantisation."""
    kept = list(dict.fromkeys(chain.biases))
    of_columns = [factor for factor in factors if factor.size != 1]
    operands = [region.operands[number] for number in kept]
    operands += [Tensor(factor.shape, "float32") for factor in of_columns]
    steps: list[Step] = []

    def add(step: Step) -> int:
        steps.append(step)
        return len(operands) + len(steps)

    current = 0
    for bias in chain.biases:
        current = add(Step("add", (current, 1 + kept.index(bias)), dtype="int32"))
    arguments = [current, add(Step("constant", value=float(chain.zero_point)))]
    for number, factor in enumerate(factors, 1 + len(kept)):
        if of_columns:
            arguments.append(number)
        else:
            arguments.append(add(Step("constant", value=float(factor[0]))))
    add(Step("requantize", tuple(arguments), dtype=chain.dtype))
    changed = region.replace(operands=tuple(operands), epilogue=tuple(steps))
    return _Requantizing(changed, kept, of_columns)


def _with_constants(
    function: relax.Function, region: Region, arguments: list[relax.Expr], found: _Requantizing
) -> relax.Function:
    """The region's function for the changed region: operands that it lacks are constants inside."""
    inputs = len(region.inputs)
    values: dict[relax.Expr, relax.Expr] = dict(zip(function.params, arguments, strict=True))
    parameters: list[relax.Var] = []
    for number in (*range(inputs), *(inputs + number for number in found.kept)):
        old = function.params[number]
        parameters.append(relax.Var(old.name, old.ty))
        values[old] = parameters[-1]
    for number, factor in enumerate(found.factors):
        parameters.append(relax.Var(f"factor{number}", relax.TensorType(factor.shape, "float32")))
    return region_function(
        found.region, parameters, lambda b: emit_body(b, function, values), dict(function.attrs)
    )

"""Select Winograd: uses Winograd's algorithm for stride-1 convolutions that it makes faster.

Before

    R.func_attr({"Composite": "tvm_hybrid.conv2d", "tvm_hybrid.region": "{"op": "conv2d", ...}"})

After

    R.func_attr({"Composite": "tvm_hybrid.conv2d_winograd",
                 "tvm_hybrid.region": "{"op": "conv2d_winograd", ...}",
                 "tvm_hybrid.reason": "template conv2d_winograd: 0.56 ms estimated, ..."})

Winograd's transforms increase rounding errors, and transformed weights take four times the bytes.
So a region is changed only if all of these conditions hold:

- it computes 8-bit integers, on a CPU without VNNI, so that results stay exact; or `fast_math`
  allows it. "default" requires that the largest expected error of a result, over the root mean
  square of the results (`convolution.winograd.algorithm.expected_error`), is within `TOLERANCE`;
  "on" accepts any error; "off" changes nothing.
- its estimated time is at most `LEAST_GAIN` of the time of the template "conv2d"
  (tir_schedules/convolution/winograd/config.py). Weights are assumed to come from memory if all
  weights of the module do not fit in L3, because every run reads all of them.
- its weight is a constant, or a parameter that a separate function packs before any run
  (`dynamic_weights`): otherwise every call would transform the weight again.

`explain` shows both times, or why a region that Winograd could compute is not changed.
"""

from __future__ import annotations

import msgspec
from tvm import IRModule, ir, relax

from microkernels.machines.machine import Machine
from relay_passes.ir import functions
from relay_passes.ir.constants import bytes_of, constants_of
from relay_passes.ir.functions import is_region_function, named_pass, region_of
from relay_passes.ir.moving_operators import moved_weights, weight_bytes, weights_of
from relay_passes.ir.rewrite import is_ordinary, map_functions
from tir_schedules.convolution.winograd.algorithm import Algorithm, expected_error
from tir_schedules.convolution.winograd.config import default_config, direct_cycles, winograd_cost
from tir_schedules.core.kernel_numbers import FormMemo
from tir_schedules.core.product_plan import is_integer
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

TOLERANCE = 5e-5  # up to 1500 channels; a network's own noise is far above, bfloat16's is 4e-3
LEAST_GAIN = 0.9  # of the direct template's time: the error of the estimates
DIRECT, WINOGRAD = ("conv1d", "conv2d"), "conv2d_winograd"
_UNKNOWN = (
    "Winograd needs a weight that is a constant, or one that "
    "partition_for_tvm_hybrid(transform_params=True) packs before any run"
)


class Choice(msgspec.Struct, frozen=True):
    """The choice for a region that Winograd could compute, and the reason that `explain` shows."""

    winograd: bool
    reason: str


@named_pass
def select_winograd(
    mod: IRModule, machine: Machine, fast_math: str = "default", dynamic_weights: bool = False
) -> IRModule:
    """The pass; it must run after `partition`.

    Parameters
    ----------
    machine : Machine
        The machine that kernels are built for.
    fast_math : str
        One of `pipeline_options.FAST_MATH_LEVELS`.
    dynamic_weights : bool
        Whether weights that are parameters are packed before any run.
    """
    weights = weights_of(mod) if dynamic_weights else set()
    cold = constant_bytes(mod) + weight_bytes(weights) > machine.l3_bytes
    unknown = _with_unknown_weights(mod, weights)
    # A model has many equal layers.
    choice_of = FormMemo(lambda region: choose(region, machine, fast_math, cold))

    def chosen(function: relax.Function) -> relax.Function:
        region, winograd = region_of(function), template_for(WINOGRAD)
        moved = region.replace(op=WINOGRAD)
        if region.op not in DIRECT or winograd.rejection(moved, machine.isa) is not None:
            return function
        if function in unknown:
            return function.with_attr(functions.REASON, f"template {region.op}; {_UNKNOWN}")
        choice = choice_of(region)
        function = function.with_attr(functions.REASON, choice.reason)
        if not choice.winograd:
            return function
        function = function.with_attr(functions.REGION, moved.to_json())
        return function.with_attr(functions.COMPOSITE, functions.PREFIX + WINOGRAD)

    return map_functions(mod, is_region_function, chosen)


def choose(region: Region, machine: Machine, fast_math: str, cold: bool) -> Choice:
    """Chooses the template for a region that both templates can compute.

    Parameters
    ----------
    cold : bool
        Whether weights are read from memory.
    """
    if is_integer(region):
        return _faster(region, machine, cold, "exact")
    stays = f"template {region.op}; Winograd"
    if fast_math == "off":
        return Choice(False, f"{stays} is not allowed: fast_math is off")
    error = expected_error(region.inputs[0].shape[-1], Algorithm.of(region).growth)
    if fast_math == "default" and error > TOLERANCE:
        return Choice(
            False,
            f"{stays} is not allowed: errors up to {error:.1e} of the result are expected, more "
            f"than {TOLERANCE:.0e}; fast_math on accepts them",
        )
    return _faster(region, machine, cold, f"errors up to {error:.1e} of the result expected")


def _faster(region: Region, machine: Machine, cold: bool, errors: str) -> Choice:
    """Whether Winograd is estimated to be faster; `errors` describes its effect on results."""
    moved = region.replace(op=WINOGRAD)
    per_ms = 1e3 * machine.cycles_per_us
    ours = winograd_cost(moved, default_config(moved, machine), machine, cold).total / per_ms
    theirs = direct_cycles(region, machine, cold) / per_ms
    if ours > LEAST_GAIN * theirs:
        stays = f"template {region.op}; Winograd is estimated at"
        return Choice(False, f"{stays} {ours:.3g} ms, direct at {theirs:.3g} ms")
    return Choice(
        True, f"template {WINOGRAD}: {ours:.3g} ms estimated, direct {theirs:.3g} ms; {errors}"
    )


def _with_unknown_weights(mod: IRModule, weights: set[relax.Expr]) -> set[relax.Function]:
    """The regions whose weight, the second input, is known only at the call."""
    found = set()
    for function in filter(is_ordinary, mod.functions.values()):
        for block in function.body.blocks:
            bindings = block.bindings[:]
            # `weights` are known like constants, even if their elements are moved.
            known = moved_weights(bindings, weights)
            for call in (each.value for each in bindings if isinstance(each.value, relax.Call)):
                if not isinstance(call.op, ir.GlobalVar) or len(call.args) < 2:
                    continue
                if not isinstance(call.args[1], ir.GenericConst) and call.args[1] not in known:
                    found.add(mod[call.op])
    return found


def constant_bytes(mod: IRModule) -> int:
    """Bytes of all constants of a module, each counted once."""
    return sum(bytes_of(each.value) for each in constants_of(mod))

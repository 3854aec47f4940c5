"""The program that TVM's own pipeline makes of a region: a workload of MetaSchedule's database.

Before

    matmul(float32[128x384], float32[384x512]c) add(acc,float32[512]) relu(%0) -> float32[128x512]

After

    @T.prim_func
    def main(x, w, bias, result):
        for i0, i1, k in T.grid(128, 512, 384): ...        # LegalizeOps
        for i0, i1 in T.grid(128, 512): ...                # FuseOps, FuseTIR

`MetaScheduleApplyDatabase` looks for a structurally equal program: equal parameters in equal order,
equal loops. If weights are to be packed at compile time (`AttachAttrLayoutFreeBuffers`), a program
also marks its constant parameters, and is then another workload.

`region_of` goes the other way. It guesses a region from the program's blocks, writes that region as
a program, and accepts the guess only if both programs are structurally equal. So a guess may be
rash, but an accepted one is never wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tvm_ffi
from tvm import IRModule, ir, relax, tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir import Schedule

from microkernels.base.errors import ConfigError
from microkernels.base.tvm_compat.tir import NO_ALIAS
from tir_schedules.core.attributes import Attribute, attribute_text
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.epilogue.fusible_ops import FUSIBLE_OPS
from tir_schedules.generic.expressions import call_name

LAYOUT_FREE = "layout_free_buffers"
_ATTRS: dict[str, tuple[str, ...]] = {
    "matmul": (),
    "batch_matmul": ("a_axes", "b_axes"),
    "conv2d": ("strides", "padding", "dilation", "groups"),
}
_PRODUCTS = (("uint8", "int8"), ("int8", "uint8"), ("float32", "bfloat16"))
# Operators that only rewriting makes, and operators with attributes that a step does not have.
_WITH_ATTRS = ("", "relax.nn.softplus")


def workload_of(region: Region, constants: bool = False) -> IRModule:
    """The program of a region, normalised as MetaSchedule does.

    Parameters
    ----------
    region : Region
        A "matmul", "batch_matmul" or "conv2d".
    constants : bool
        Whether the program marks which parameters are constants. Operands of the epilogue count as
        constants if they have fewer elements than the result.

    Returns
    -------
    IRModule
        One function, "main".

    Raises
    ------
    ConfigError
        If TVM's pipeline makes several programs of the region, or TVM has no operator for a step;
        the message names the step.
    """
    try:
        _check(region)
        program = fused_program(_relax_module(region))
    except ConfigError:
        raise
    except Exception as error:  # TVM's operators refuse the shapes or types
        raise ConfigError(f"TVM refuses its operators: {first_line(error)}") from error
    if constants:
        operands = enumerate(region.operands, len(region.inputs))
        free = [i for i, tensor in enumerate(region.inputs) if tensor.constant]
        free += [i for i, tensor in operands if tensor.size < region.output.size]
        program = program.with_attr(LAYOUT_FREE, free)
    return normalized(program)


def first_line(error: Exception) -> str:
    """The first non-empty line of an error of TVM's, at most 160 characters."""
    return next((line for line in str(error).splitlines() if line.strip()), "")[:160]


def normalized(program: tirx.PrimFunc) -> IRModule:
    """The form of a program that `MetaScheduleApplyDatabase` looks up."""
    bare = program.without_attr("global_symbol") if "global_symbol" in program.attrs else program
    named = bare.with_attrs({"global_symbol": "main", **NO_ALIAS})
    return IRModule({"main": named})


def legalized(mod: IRModule) -> IRModule:
    """Lowers a module of Relax operators as TVM's zero pipeline does."""
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    return ir.transform.Sequential(passes)(mod)


def fused_program(mod: IRModule) -> tirx.PrimFunc:
    """The only program with a reduction that TVM makes of a module of Relax operators.

    Further programs may convert or permute its operands.

    Raises
    ------
    ConfigError
        If there is no such program, or several.
    """
    programs = [f for _, f in legalized(mod).functions_items() if isinstance(f, tirx.PrimFunc)]
    anchored = [f for f in programs if anchor_block(Schedule(normalized(f))) is not None]
    if len(anchored) != 1:
        raise ConfigError(f"TVM makes {len(anchored)} programs with a product of it, not one")
    return anchored[0]


def anchor_block(schedule: Schedule) -> str | None:
    """Name of the only block with a reduction; None if there are none or several."""
    names = []
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        found = schedule.get(block)
        if any(axis.iter_type == tirx.IterVar.CommReduce for axis in found.iter_vars):
            names.append(str(found.name_hint))
    return names[0] if len(names) == 1 else None


def _relax_module(region: Region) -> IRModule:
    """A module of the region's operators, as an importer would write them."""
    builder = relax.BlockBuilder()
    tensors = (*region.inputs, *region.operands)
    parameters = [
        relax.Var(f"p{i}", relax.TensorType(tensor.shape, tensor.dtype))
        for i, tensor in enumerate(tensors)
    ]
    with builder.function("main", parameters):
        with builder.dataflow():
            values: list[relax.Expr] = [builder.emit(_anchor(region, parameters))]
            values += parameters[len(region.inputs) :]
            for step in region.epilogue:
                arguments = [values[value] for value in step.args]
                if step.op == "constant":
                    values.append(relax.const(step.value, step.dtype))
                elif step.op == "cast":
                    values.append(builder.emit(relax.op.astype(arguments[0], step.dtype)))
                else:
                    operator = ir.Op.get(FUSIBLE_OPS[step.op].relax)
                    values.append(builder.emit(relax.Call(operator, arguments)))
            result = builder.emit_output(values[-1] if region.epilogue else values[0])
        builder.emit_func_output(result)
    mod = builder.get()
    found = tuple(int(extent) for extent in mod["main"].ret_ty.shape.values)
    if (found, str(mod["main"].ret_ty.dtype)) != (region.output.shape, region.output.dtype):
        raise ConfigError(f"no operator of the epilogue makes the result {region.output}")
    return mod


def _check(region: Region) -> None:
    """Checks that TVM has an operator for each part of a region; ConfigError if not."""
    if region.op not in _ATTRS:
        merged = "; its parts, tuned with fusion=fine, have programs" if region.parts else ""
        raise ConfigError(f"TVM has no one program for {region.op}{merged}")
    if len(region.inputs) != 2:
        raise ConfigError(f"an anchor with {len(region.inputs)} inputs")
    left, right = (tensor.dtype for tensor in region.inputs)
    if left != right and (left, right) not in _PRODUCTS:
        raise ConfigError(f"{left} by {right}: TVM has no such product")
    attrs = {name: value for name, value in region.attrs.items() if name not in _ATTRS[region.op]}
    if attrs:
        text = ", ".join(f"{name}={attribute_text(value)}" for name, value in sorted(attrs.items()))
        raise ConfigError(f"the anchor's attributes {text}, for which TVM has no operator")
    for step in region.epilogue:
        entry = FUSIBLE_OPS.get(step.op)
        if step.op not in ("constant", "cast") and not (entry and entry.relax not in _WITH_ATTRS):
            raise ConfigError(f"the step {step.op}, for which TVM has no operator")


def _anchor(region: Region, parameters: list[relax.Var]) -> relax.Expr:
    """Calls the anchor's operator."""
    x: relax.Expr
    w: relax.Expr
    x, w = parameters[:2]
    left, right = (tensor.dtype for tensor in region.inputs)
    if left != right and right == "bfloat16":
        x = relax.op.astype(x, "bfloat16")  # becomes a separate program
    out_dtype = "int32" if right in ("int8", "uint8") else "float32"
    if region.op == "conv2d":
        return relax.op.nn.conv2d(
            x,
            w,
            strides=list(region.numbers("strides")),
            padding=list(region.numbers("padding")),
            dilation=list(region.numbers("dilation")),
            groups=region.integer("groups"),
            data_layout="NHWC",
            kernel_layout="HWIO",
            out_dtype=out_dtype,
        )
    operands = []  # in the product's order of axes; TVM permutes in separate programs
    for operand, axes in ((x, region.numbers("a_axes")), (w, region.numbers("b_axes"))):
        permuted = list(axes) != sorted(axes)
        operands.append(relax.op.permute_dims(operand, list(axes)) if permuted else operand)
    return relax.op.matmul(operands[0], operands[1], out_dtype=out_dtype)


_BINARY: dict[type, str] = {
    tirx.Add: "add",
    tirx.Sub: "subtract",
    tirx.Mul: "multiply",
    tirx.Div: "divide",
    tirx.Max: "maximum",
    tirx.Min: "minimum",
}
_CALLS = ("exp", "log", "erf", "tanh", "sigmoid", "sqrt", "rsqrt")
_STRIDES = (1, 2, 3, 4)


def region_of(program: IRModule, known: Iterable[Region] = ()) -> Region:
    """The region that a program computes.

    Parameters
    ----------
    program : IRModule
        One function, "main".
    known : iterable of Region
        Regions to compare it with first, such as those of a model.

    Raises
    ------
    ConfigError
        If none of our regions has this program.
    """
    wanted = IRModule({"main": program["main"].without_attr(LAYOUT_FREE)})
    schedule = Schedule(program)
    name = anchor_block(schedule)
    if name is None:
        raise ConfigError("no program of one product or convolution")
    for region in itertools.chain(known, _guesses(schedule, name)):
        try:
            written = workload_of(region)
        except ConfigError:  # the guess has no program
            continue
        if tvm_ffi.structural_equal(written, wanted):
            return region
    raise ConfigError(f"a program around {name!r} that TVM writes for no region of ours")


def knows_constants(program: IRModule) -> bool:
    """Whether a program marks which of its parameters are constants."""
    return LAYOUT_FREE in program["main"].attrs


def _guesses(schedule: Schedule, name: str) -> Iterator[Region]:
    """Yields regions that may have this program."""
    parameters = [_tensor(parameter) for parameter in schedule.mod["main"].params]
    if len(parameters) < 3:
        return
    left, right, *operands, output = parameters
    try:
        epilogue = _Steps(schedule, name).epilogue()
    except ConfigError:
        return
    for op, attrs in _anchors(left, right, output):
        weight = Tensor(right.shape, right.dtype, op != "batch_matmul")
        base = Region(
            op=op, inputs=(left, weight), operands=tuple(operands), output=output, attrs=attrs
        )
        shorter = epilogue  # with relu, gelu and silu as one step each
        for rule in _RULES:
            shorter = _applied(shorter, len(operands), rule)
        for form in dict.fromkeys((shorter, epilogue)):
            yield base.replace(epilogue=form)


def _tensor(parameter: Any) -> Tensor:
    return Tensor(tuple(int(extent) for extent in parameter.shape), str(parameter.ty.dtype))


def _anchors(left: Tensor, right: Tensor, output: Tensor) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields operators and attributes that fit the shapes of these operands."""
    if len(right.shape) == 2 and len(left.shape) >= 2:
        yield "matmul", {}
    elif right.shape[:-2] == left.shape[:-2] and right.shape[-2] == left.shape[-1]:
        axes = tuple(range(len(left.shape)))
        yield "batch_matmul", {"a_axes": axes, "b_axes": axes}
    elif len(left.shape) == len(right.shape) == len(output.shape) == 4:
        groups = left.shape[3] // max(right.shape[2], 1)
        for stride in _STRIDES:
            paddings = []  # per axis: pairs of padding before and after that give this output
            for axis in (0, 1):
                least = (output.shape[1 + axis] - 1) * stride + right.shape[axis]
                least -= left.shape[1 + axis]
                totals = range(max(least, 0), least + stride)
                found = [(n, total - n) for total in totals for n in {total // 2, -(-total // 2)}]
                paddings.append(found)
            for (top, bottom), (before, after) in itertools.product(*paddings):
                attrs: dict[str, Attribute] = {
                    "strides": (stride, stride),
                    "padding": (top, before, bottom, after),
                    "dilation": (1, 1),
                    "groups": groups,
                }
                yield "conv2d", attrs


class _Steps:
    """Reads the blocks after the anchor as steps of an epilogue, one operator each."""

    def __init__(self, schedule: Schedule, anchor: str) -> None:
        self.schedule, self.anchor = schedule, anchor
        self.steps: list[EpilogueOp] = []
        parameters = schedule.mod["main"].params
        self.first = len(parameters) - 2  # number of the first step's value
        self.values: dict[Any, int] = {
            parameter: number for number, parameter in enumerate(parameters[2:-1], 1)
        }

    def epilogue(self) -> tuple[EpilogueOp, ...]:
        """The steps; ConfigError if a block cannot be read as steps."""
        schedule = self.schedule
        blocks = [schedule.get(b) for b in schedule.get_child_blocks(schedule.get_sblock("root"))]
        names = [str(block.name_hint) for block in blocks]
        start = names.index(self.anchor)
        self.values[blocks[start].writes[0].source] = 0
        for block in blocks[start + 1 :]:
            store = block.body
            if not isinstance(store, tirx.BufferStore):
                raise ConfigError(f"the block {block.name_hint}")
            self.values[store.buffer] = self.value(store.value)
        return tuple(self.steps)

    def value(self, expr: Any) -> int:
        """The number of the value that an expression computes."""
        if isinstance(expr, TensorLoad):
            source = expr.source
            if source not in self.values:
                raise ConfigError(f"reads {source}")
            return self.values[source]
        dtype = str(expr.ty.dtype)
        if isinstance(expr, (tirx.FloatImm, tirx.IntImm)):
            return self.step(EpilogueOp("constant", (), float(expr.value), dtype))
        if isinstance(expr, tirx.Cast):
            return self.step(EpilogueOp("cast", (self.value(expr.value),), None, dtype))
        if type(expr) in _BINARY:
            left, right = self.value(expr.a), self.value(expr.b)
            return self.step(EpilogueOp(_BINARY[type(expr)], (left, right), None, dtype))
        if call_name(expr) in _CALLS:
            return self.step(EpilogueOp(call_name(expr), (self.value(expr.args[0]),), None, dtype))
        raise ConfigError(f"computes {expr}")

    def step(self, step: EpilogueOp) -> int:
        """The number of a step's value; equal steps share one number."""
        if step not in self.steps:
            self.steps.append(step)
        return self.first + self.steps.index(step)


Pattern = tuple[Any, ...]
"""(operator, argument patterns...), ("constant", number), or "x" for the new step's argument."""
_X = "x"
_RULES: tuple[tuple[str, Pattern], ...] = (
    ("relu", ("maximum", _X, ("constant", 0.0))),
    (
        "gelu",
        (
            "multiply",
            _X,
            (
                "add",
                ("constant", 0.5),
                ("multiply", ("erf", ("multiply", _X, ("constant", 0.5**0.5))), ("constant", 0.5)),
            ),
        ),
    ),
    ("silu", ("multiply", _X, ("sigmoid", _X))),
)


def _applied(
    steps: tuple[EpilogueOp, ...], operands: int, rule: tuple[str, Pattern]
) -> tuple[EpilogueOp, ...]:
    """Replaces steps that match a rule by one step of its operator, and drops unused steps."""
    name, pattern = rule
    first = 1 + operands
    changed = list(steps)
    for index, step in enumerate(steps):
        found: set[int] = set()
        if _matches(steps, first, first + index, pattern, found.add) and len(found) == 1:
            changed[index] = EpilogueOp(name, (found.pop(),), None, step.dtype)
    return _pruned(changed, first)


def _matches(
    steps: tuple[EpilogueOp, ...], first: int, value: int, pattern: Any, bind: Callable[[int], None]
) -> bool:
    if pattern == _X:
        bind(value)
        return True
    if value < first:
        return False
    step = steps[value - first]
    name, *arguments = pattern
    if step.op != name:
        return False
    if name == "constant":
        number = arguments[0]
        return step.value is not None and abs(step.value - number) <= 1e-6 * abs(number)
    return len(step.args) == len(arguments) and all(
        _matches(steps, first, argument, inner, bind)
        for argument, inner in zip(step.args, arguments, strict=True)
    )


def _pruned(steps: list[EpilogueOp], first: int) -> tuple[EpilogueOp, ...]:
    """The steps that the last one needs, renumbered."""
    needed = {len(steps) - 1} if steps else set()
    for index in reversed(range(len(steps))):
        if index in needed:
            needed |= {argument - first for argument in steps[index].args if argument >= first}
    number = {first + old: first + new for new, old in enumerate(sorted(needed))}
    return tuple(
        EpilogueOp(step.op, tuple(number.get(a, a) for a in step.args), step.value, step.dtype)
        for index, step in enumerate(steps)
        if index in needed
    )

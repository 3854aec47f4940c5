"""The program that TVM's own pipeline writes for a region: a workload of MetaSchedule's database.

Before

    matmul(float32[128x384], float32[384x512]c) add(acc,float32[512]) relu(%0) -> float32[128x512]

After

    @T.prim_func
    def main(x, w, bias, result):
        for i0, i1, k in T.grid(128, 512, 384): ...        # LegalizeOps
        for i0, i1 in T.grid(128, 512): ...                # FuseOps, FuseTIR

`MetaScheduleApplyDatabase` looks for a program that is structurally equal: the same parameters in
the same order, the same loops. Where weights are to be packed at compile time
(`AttachAttrLayoutFreeBuffers`), a program also says which of its parameters are constants, and is
another workload.
"""

from __future__ import annotations

from tvm import IRModule, ir, relax, tirx
from tvm.s_tir import Schedule

from microkernels.base.errors import ConfigError
from microkernels.base.tvm_compat.tir import NO_ALIAS
from tir_schedules.core.attributes import attribute_text
from tir_schedules.core.region import Region
from tir_schedules.epilogue.fusible_ops import FUSIBLE_OPS

LAYOUT_FREE = "layout_free_buffers"
_ATTRS: dict[str, tuple[str, ...]] = {
    "matmul": (),
    "batch_matmul": ("a_axes", "b_axes"),
    "conv2d": ("strides", "padding", "dilation", "groups"),
}
_PRODUCTS = (("uint8", "int8"), ("int8", "uint8"), ("float32", "bfloat16"))
# Operators that only arise by rewriting, and those whose attributes no step has.
_WITH_ATTRS = ("", "relax.nn.softplus")


def workload_of(region: Region, constants: bool = False) -> IRModule:
    """The program of a region, normalised as MetaSchedule does it.

    Parameters
    ----------
    region : Region
        A "matmul", "batch_matmul" or "conv2d".
    constants : bool
        Whether it says which parameters are constants. Operands of the epilogue count as constants
        if they have fewer elements than the result.

    Returns
    -------
    IRModule
        One function, "main".

    Raises
    ------
    ConfigError
        If TVM's pipeline has no one program for it, or this module no operator for a step; says
        which.
    """
    try:
        _check(region)
        program = fused_program(_relax_module(region))
    except ConfigError:
        raise
    except Exception as error:  # shapes or types that TVM's operators do not take
        raise ConfigError(f"TVM refuses its operators: {first_line(error)}") from error
    if constants:
        operands = enumerate(region.operands, len(region.inputs))
        free = [i for i, tensor in enumerate(region.inputs) if tensor.constant]
        free += [i for i, tensor in operands if tensor.size < region.output.size]
        program = program.with_attr(LAYOUT_FREE, free)
    return normalized(program)


def first_line(error: Exception) -> str:
    """What an error of TVM's says first."""
    return next((line for line in str(error).splitlines() if line.strip()), "")[:160]


def normalized(program: tirx.PrimFunc) -> IRModule:
    """What `MetaScheduleApplyDatabase` looks up in place of a program of a module."""
    bare = program.without_attr("global_symbol") if "global_symbol" in program.attrs else program
    named = bare.with_attrs({"global_symbol": "main", **NO_ALIAS})
    return IRModule({"main": named})


def legalized(mod: IRModule) -> IRModule:
    """A module of Relax operators as TVM's zero pipeline leaves it."""
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    return ir.transform.Sequential(passes)(mod)


def fused_program(mod: IRModule) -> tirx.PrimFunc:
    """The only program of a module of Relax operators that has a reduction.

    Others may convert or permute its operands.

    Raises
    ------
    ConfigError
        If there is none, or several.
    """
    programs = [f for _, f in legalized(mod).functions_items() if isinstance(f, tirx.PrimFunc)]
    anchored = [f for f in programs if anchor_block(Schedule(normalized(f))) is not None]
    if len(anchored) != 1:
        raise ConfigError(f"TVM makes {len(anchored)} programs with a product of it, not one")
    return anchored[0]


def anchor_block(schedule: Schedule) -> str | None:
    """Name of the only block with a reduction; None if there is none or several."""
    names = []
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        found = schedule.get(block)
        if any(axis.iter_type == tirx.IterVar.CommReduce for axis in found.iter_vars):
            names.append(str(found.name_hint))
    return names[0] if len(names) == 1 else None


def _relax_module(region: Region) -> IRModule:
    """The region's operators, as an importer would write them."""
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
        raise ConfigError(f"the result is {region.output}, which no operator after it makes")
    return mod


def _check(region: Region) -> None:
    """Whether TVM has operators for all of it; ConfigError if not."""
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
    """The call of the anchor's operator."""
    x: relax.Expr
    w: relax.Expr
    x, w = parameters[:2]
    left, right = (tensor.dtype for tensor in region.inputs)
    if left != right and right == "bfloat16":
        x = relax.op.astype(x, "bfloat16")  # in a program of its own
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
    operands = []  # as the product sees them; TVM permutes in a program of its own
    for operand, axes in ((x, region.numbers("a_axes")), (w, region.numbers("b_axes"))):
        permuted = list(axes) != sorted(axes)
        operands.append(relax.op.permute_dims(operand, list(axes)) if permuted else operand)
    return relax.op.matmul(operands[0], operands[1], out_dtype=out_dtype)

"""`tensorize`: puts our kernels into programs in TIR, for TVM's users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
from tvm import IRModule, ir, relax, tirx
from tvm.relax.analysis import definable_tir_vars_in_type

from microkernels.base.errors import CompileError
from microkernels.isa import target_isa
from microkernels.vector.expressions import Expr
from relay_passes.ir.decisions import TENSORIZE, Decision, DecisionLog, uses_half_tiles, uses_tiles
from relay_passes.ir.entries import MAIN
from relay_passes.ir.functions import KERNEL
from relay_passes.ir.graph import bindings_of, is_call, size_of
from relay_passes.ir.rewrite import is_kernel, is_relax
from relay_passes.lift.tir_contraction import in_caller_sizes
from relay_passes.lower_module import lower_module
from relay_passes.pipeline_options import PipelineOptions
from tir_schedules.assembled.side_by_side import KernelCall, one_after_another
from tir_schedules.generic.expressions import const_int, substitute, variables_of
from tir_schedules.generic.nest import NotHandledError, is_number, read_program
from tir_schedules.generic.schedule import aligned_to_elements

from ..api import warn_if_slow
from ..library.manifest import ChosenOptions, Coverage, RecordUse, package_versions, uses_in
from ..options import CompileOptions, Records, passes_options, records_of, setting_of, target_of
from ..targets.build_check import with_needs
from ..targets.cpu_features import required_features, warn_if_featureless
from ..targets.cpu_guard import Guard
from ..targets.resolve import MachineLike, TargetLike, cpu_name

_SCHEDULED = "tirx.is_scheduled"
_NAME = "global_symbol"
_TARGET = "target"
Program = tirx.PrimFunc | IRModule


def tensorize(
    program: Program,
    *,
    target: TargetLike = None,
    machine: MachineLike = None,
    records: Records = None,
    num_threads: int | None = None,
    decisions: DecisionLog | None = None,
) -> Program:
    """Multiplies with our kernels in TIR programs that no template was written for.

    A sum of products of two tensors is found by the roles of its axes, with indices in any order:
    matrix products, batches, transposed and gathered operands, convolutions; in float32, bfloat16
    and 8-bit integers. Operands are reordered if a template needs another order, and the blocks
    around the product are fused with it. All of it stays in one function with the same parameters.

    Parameters
    ----------
    program : tirx.PrimFunc or tvm.IRModule
        A function without a schedule, whose last parameters are its outputs; or a module, in which
        every such function with a sum of products is rewritten.
    target : str, mapping, tvm.target.Target or None
        The CPU; None for this one.
    machine, records, num_threads
        See `CompileOptions`.
    decisions : list of Decision, optional
        Gets a decision for each product, with its kernel.

    Returns
    -------
    tirx.PrimFunc or tvm.IRModule
        The scheduled function, with the target that it was made for as an attribute: compile it for
        that target, or without naming one. Its arguments may have any alignment. Other functions of
        a module are unchanged.

    Raises
    ------
    CompileError
        If a function has no product that a kernel of ours multiplies, or a size that no input
        dimension equals; the message says why. Functions of a module may lack products.
    TargetError
        If the target or the number of threads makes no sense.
    RecordError
        If a record file cannot be read.
    """
    log = [] if decisions is None else decisions
    chosen = CompileOptions(
        target=target, machine=machine, records=records, num_threads=num_threads
    )
    if not isinstance(program, IRModule):
        return _function(program, route_passes(chosen, IRModule({"main": program})), log)
    options = route_passes(chosen, program)
    updated = IRModule(dict(program.functions_items()), program.attrs, program.global_infos)
    for gvar, function in program.functions_items():
        if not is_kernel(function) or _SCHEDULED in function.attrs or KERNEL in function.attrs:
            continue
        try:
            updated.update_func(gvar, _function(function, options, log))
        except CompileError as reason:
            name = str(gvar.name_hint)
            log.append(
                Decision(node=name, op=TENSORIZE, taken=False, function=name, reason=str(reason))
            )
    return updated


def _function(
    function: tirx.PrimFunc, options: PipelineOptions, decisions: DecisionLog
) -> tirx.PrimFunc:
    """Rewrites one function; CompileError if it has no product for our kernels."""
    inputs, outputs = _parameters(function)
    log: DecisionLog = []
    sizes = _wide_sizes(inputs, outputs)
    # A Relax module whose `main` calls the function with these sizes.
    builder = relax.BlockBuilder()
    private = function.without_attr(_NAME) if _NAME in function.attrs else function
    values = [relax.Var(str(each.name), _type(each, sizes)) for each in inputs]
    types = [_type(each, sizes) for each in outputs]
    if sizes:
        private, _ = in_caller_sizes(private, values, types)
    gvar = builder.add_func(private, "program")
    with builder.function("main", values):
        with builder.dataflow():
            call = relax.call_tir(gvar, values, types[0] if len(types) == 1 else types)
            result = builder.emit_output(builder.emit(call))
        builder.emit_func_output(result)
    lowered = lower_module(builder.get(), options, log)
    notes = [each for each in log if each.op == TENSORIZE]
    if not any(each.taken for each in notes):
        reason = notes[0].reason if notes else "no sum of products of two tensors"
        raise CompileError(f"no kernel of ours multiplies in it: {reason}")
    if not any(each.taken and each.kernel for each in log):
        left = [each.reason for each in log if each.op != TENSORIZE and not each.taken]
        raise CompileError(f"no template takes its product: {'; '.join(left)}")
    narrow = {wide: tirx.Cast("int64", size) for size, wide in sizes.items()}
    made = as_one_kernel(lowered, inputs, outputs, narrow)
    decisions.extend(log)
    kernels = dict.fromkeys(each.kernel for each in log if each.taken and each.kernel)
    attrs = {**function.attrs, KERNEL: " + ".join(kernels), _SCHEDULED: True}
    # Without a target attribute, TVM compiles for its plainest CPU if nobody names a target, and
    # LLVM ends the process at the first instruction that such a CPU lacks.
    attrs[_TARGET] = options.target
    made = aligned_to_elements(made).with_attrs({"tirx.noalias": True, **attrs})
    return with_needs(made, options.target, log)


def _parameters(function: tirx.PrimFunc) -> tuple[list[tirx.Var], list[tirx.Var]]:
    """The tensors that a function reads, and those that it writes."""
    try:
        nests = read_program(function, size_of).nests
    except NotHandledError as reason:
        raise CompileError(f"not a program of plain loops: {reason}") from None
    written = {store.buffer for nest in nests for store in nest.stores}
    params = list(function.params)
    if any(map(is_number, params)):
        raise CompileError("a parameter is not a tensor")
    inputs = [param for param in params if param not in written]
    outputs = params[len(inputs) :]
    if not outputs or any(param not in written for param in outputs):
        raise CompileError("its results are not its last parameters")
    return inputs, outputs


def _wide_sizes(inputs: list[tirx.Var], outputs: list[tirx.Var]) -> dict[tirx.Var, tirx.Var]:
    """64-bit variables, as Relax needs, for narrower ones in extents; CompileError if sizes share a
    name, or a size is not itself a dimension of an input."""
    used, defined = set(), set()
    for buffer in (*inputs, *outputs):
        used |= {var for extent in buffer.shape for var in variables_of(extent)}
    for buffer in inputs:
        defined |= {extent for extent in buffer.shape if isinstance(extent, tirx.Var)}
    if used - defined:
        name = next(iter(used - defined)).name
        raise CompileError(f"no dimension of its inputs is the size {name}")
    if len({str(var.name) for var in used}) < len(used):
        raise CompileError("two sizes have the same name; rename one of them")
    return {var: tirx.Var(str(var.name), "int64") for var in used if str(var.ty) != "int64"}


def _type(buffer: tirx.Var, sizes: dict[tirx.Var, tirx.Var]) -> relax.TensorType:
    numbers = map(const_int, buffer.shape)
    shape = [
        substitute(extent, sizes) if number is None else number
        for extent, number in zip(buffer.shape, numbers, strict=True)
    ]
    return relax.TensorType(shape, str(buffer.dtype))


MANIFEST = "tvm_hybrid.manifest"
"""Module attribute that every route sets: a `RouteManifest` as JSON."""


class RouteManifest(ChosenOptions, frozen=True, kw_only=True):
    """What a module was made for; the fields are those of `tvm_hybrid.manifest.Manifest`."""

    versions: dict[str, str]
    cpu: str
    target: str
    isa: str
    features: tuple[str, ...]
    threads: int
    coverage: Coverage
    records: tuple[RecordUse, ...]


def route_passes(options: CompileOptions, mod: IRModule) -> PipelineOptions:
    """The options for passes over a module that the caller compiles.

    Raises
    ------
    TargetError
        If there is no such target, or its number of cores is wrong.
    """
    target = target_of(options)
    warn_if_featureless(target)
    if options.precision == "bf16":
        warn_if_slow(cpu_name(target), target_isa(target).name)
    threads = setting_of(options, here=options.target is None).count
    if options.strict == "dynamic":  # strict only if inputs of `main` have dynamic sizes
        main = next((f for gvar, f in mod.functions_items() if gvar.name_hint == MAIN), None)
        inputs = main.params if is_relax(main) else ()
        is_dynamic = any(definable_tir_vars_in_type(var.ty) for var in inputs)
        options = replace(options, strict=is_dynamic)
    return passes_options(options, target, threads, records_of(options))


def guard_for(options: PipelineOptions, decisions: DecisionLog) -> Guard:
    """The guard that the compiled code needs."""
    tiles = uses_tiles(decisions)
    features = required_features(options.target, tiles, uses_half_tiles(decisions))
    return Guard(cpu_name(options.target), features, tiles)


def with_manifest(mod: IRModule, options: PipelineOptions, decisions: DecisionLog) -> IRModule:
    """Adds a `RouteManifest` to a module as an attribute."""
    manifest = RouteManifest(
        versions=package_versions(),
        cpu=cpu_name(options.target),
        target=str(options.target),
        isa=target_isa(options.target).name,
        features=guard_for(options, decisions).features,
        threads=options.threads,
        **options.code(),
        coverage=Coverage(sum(each.taken for each in decisions), len(decisions)),
        records=uses_in(options.lookup),
    )
    return mod.with_attr(MANIFEST, msgspec.json.encode(manifest).decode())


def as_one_kernel(
    mod: IRModule,
    inputs: Sequence[tirx.Var],
    outputs: Sequence[tirx.Var],
    sizes: Mapping[tirx.Var, Expr] | None = None,
) -> tirx.PrimFunc:
    """Turns a lowered `main` that only calls kernels into one TIR function.

    Before

        def main(a, b):
            lv = R.call_tir(transpose, (a,), out_ty=R.Tensor((64, 32), "float32"))
            lv1 = R.call_tir(tvm_hybrid_batch_matmul, (lv, b), out_ty=R.Tensor((64, 48), "float32"))
            gv = R.reshape(lv1, [4, 16, 48])

    After

        @T.prim_func
        def main(a, b, gv):
            lv = T.sblock_alloc_buffer((64, 32))
            ...                                     # transpose, then tvm_hybrid_batch_matmul

    A reshape becomes a view of the same memory.

    Parameters
    ----------
    mod : IRModule
        The result of `lower_module`.
    inputs, outputs : sequence of Var
        The parameters of the function: tensors that it reads, tensors that it writes.
    sizes : mapping, optional
        Replacements for the size variables of `main`.

    Raises
    ------
    CompileError
        If `main` does anything but call kernels.
    """
    main = mod["main"]
    result = main.body.body
    results = list(result.fields) if isinstance(result, relax.Tuple) else [result]
    bindings = bindings_of(main)
    same: dict[relax.Expr, relax.Expr] = {
        each.var: each.value for each in bindings if isinstance(each.value, relax.Var)
    }
    same |= {each.var: each.value.args[0] for each in bindings if is_call(each.value, _RESHAPE)}
    buffers = dict(zip(main.params, inputs, strict=True))
    for expr, output in zip(results, outputs, strict=True):
        root = _root(expr, same)
        if root in buffers:
            raise CompileError(f"{output.name}: a result that is an input, or another result")
        buffers[root] = output
    steps, between = [], []
    known = sizes or {}
    for binding in bindings:
        if binding.var in same:
            continue
        call = binding.value
        if not is_call(call, "relax.call_tir") or len(call.args) != 2:
            raise CompileError(f"{binding.var.name} is no call of a kernel")
        if binding.var not in buffers:
            name, dtype = str(binding.var.name), str(binding.var.ty.dtype)
            buffers[binding.var] = tirx.decl_buffer(_shape(binding.var, known), dtype, name)
            between.append(buffers[binding.var])
        fields = list(call.args[1].fields)
        operands, shapes = [], []
        for arg in (*fields, binding.var):
            tensor = isinstance(arg.ty, relax.TensorType)
            root = _root(arg, same)
            if tensor and (isinstance(root, ir.GenericConst) or root not in buffers):
                raise CompileError(
                    f"{binding.var.name} reads a constant, which a TIR function cannot hold"
                )
            operands.append(buffers[root] if tensor else substitute(arg, known))
            shapes.append(_shape(arg, known) if tensor else [])
        steps.append(KernelCall(mod[call.args[0]], tuple(operands), tuple(shapes)))
    return one_after_another(steps, [*inputs, *outputs], between)


_RESHAPE = "relax.reshape"


def _shape(expr: relax.Expr, sizes: Mapping[tirx.Var, Expr]) -> list[Expr]:
    return [substitute(extent, sizes) for extent in expr.ty.shape.values]


def _root(expr: relax.Expr, same: dict[relax.Expr, relax.Expr]) -> relax.Expr:
    """The value that owns the memory of a value."""
    while expr in same:
        expr = same[expr]
    return expr

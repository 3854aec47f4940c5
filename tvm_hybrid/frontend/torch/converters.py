"""The table of converters by operator: TVM's converters, and ours in place of some of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from microkernels.base.errors import UnsupportedOperatorError

from ..expressions import emit
from . import functions, images, reductions
from .promotion import PROMOTED, promoting
from .quantized import QUANTIZED
from .recurrent import RECURRENT, drops_out
from .scattering import index_copy, scatter
from .sizes import Sizes

_NARROW = ("bfloat16", "float16")
# Products -> positions of operands that are widened even if they are bfloat16.
_PRODUCTS: dict[str, tuple[int, ...]] = {"mm.default": (), "bmm.default": (), "addmm.default": (0,)}
_WIDENED = (
    "convolution.default",
    "_native_batch_norm_legit_no_training.default",
    *("native_layer_norm.default", "native_group_norm.default"),
    *("_softmax.default", "_log_softmax.default"),
    *("mean.dim", "mean.default", "sum.dim_IntList"),
    *("gelu.default", "erf.default", "silu.default"),
    *("avg_pool2d.default", "avg_pool3d.default", "_adaptive_avg_pool2d.default"),
)


def _widening(name: str, own: Converter | None) -> Converter:
    """Wraps our converter, or else TVM's, to compute narrow floats in float32 and round results."""

    def convert(node: Any, importer: Any) -> Any:
        def plain(node: Any) -> Any:
            return importer.create_convert_map()[name](node) if own is None else own(node, importer)

        narrow = {
            each: dtype
            for each in node.all_input_nodes
            if (dtype := _dtype(importer.env.get(each))) in _NARROW
        }
        if not narrow:
            return plain(node)
        before = {each: importer.env[each] for each in narrow}
        is_product = name in _PRODUCTS and "float16" not in narrow.values()
        summed = [node.args[number] for number in _PRODUCTS.get(name, ())]
        for each in narrow:
            if not is_product or each in summed:
                importer.env[each] = emit(relax.op.astype(before[each], "float32"))
        try:
            result = plain(node)
        finally:
            importer.env.update(before)
        return _rounded(result, next(iter(narrow.values())))

    return convert


def _rounded(value: Any, dtype: str) -> Any:
    """Rounds a value, or the first of several, to a narrow type; other results stay as they are."""
    if isinstance(value.ty, relax.TupleType):
        items = [relax.TupleGetItem(value, number) for number in range(len(value.ty.fields))]
        first = _rounded(emit(items[0]), dtype)
        return emit(relax.Tuple([first, *map(emit, items[1:])]))
    return emit(relax.op.astype(value, dtype)) if _dtype(value) == "float32" else value


def _dtype(value: Any) -> str:
    """The element type of a tensor; "" for anything else."""
    return str(getattr(getattr(value, "ty", None), "dtype", ""))


Converter = Callable[..., Any]  # (node, importer) -> value

NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)

_DROPOUT = {"native_dropout.default", "dropout.default", "dropout_.default"}
# TVM's converters of these have side effects, which our graphs do not allow.
_UNWANTED = {"_assert_async.default", "_assert_async.msg"}


def new_importer(sizes: Sizes) -> ExportedProgramImporter:
    """TVM's importer of one graph, with the known converters in its map, and their shared state.

    The state is `sizes`, and `ranges` of dynamic quantisation by the node that chose the range.
    """
    importer = ExportedProgramImporter()
    vars(importer).update(sizes=sizes, ranges={})
    table = {
        name: importer.convert_map[name]
        for name in functions.TRUSTED
        if name in importer.convert_map
    }
    importer.convert_map = table
    for name, convert in _ours().items():
        table[name] = functools.partial(convert, importer=importer)
    for name in PROMOTED:
        if name in table:
            table[name] = promoting(importer, name, table[name])
    return importer


@functools.cache
def known_converters() -> frozenset[str]:
    """The names of operators that can be imported, such as "add.Tensor"."""
    return functions.TRUSTED | frozenset(_ours())


@functools.cache
def _ours() -> dict[str, Converter]:
    summing = {
        **{f"{name}.default": functions.product for name in ("mm", "bmm")},
        **{f"avg_pool{rank}d.default": images.average for rank in (2, 3)},
        "mean.dim": reductions.mean,
    }
    return {
        **{name: _widening(name, summing.get(name)) for name in (*_PRODUCTS, *_WIDENED)},
        **QUANTIZED,
        **functions.CONVERTERS,
        **images.CONVERTERS,
        **reductions.CONVERTERS,
        **RECURRENT,
        "getitem": item,
        # torch.compile leaves this operator for tensors in the program.
        "lift_fresh_copy.default": lambda node, importer: importer.env[node.args[0]],
        "index_copy.default": index_copy,
        "scatter.src": scatter,
        "scatter_reduce.two": scatter,
    }


def item(node: Any, importer: Any) -> Any:
    """`operator.getitem`: one of several results; many converters only make the first."""
    source, number = node.args
    whole = importer.env[source]
    if not isinstance(getattr(whole, "ty", None), relax.TensorType):
        return importer.create_convert_map()["getitem"](node)
    if number != 0:
        raise UnsupportedOperatorError(
            f"operator {source.target.__name__} (node {source.name!r}) makes its first result "
            f"only, and the program uses result {number}"
        )
    return whole


def refuse_unknown(nodes: Iterable[Any]) -> None:
    """Refuses a graph with operators that cannot be imported.

    Raises
    ------
    UnsupportedOperatorError
        The message names all of them.
    """
    unknown: dict[str, None] = {}
    random: dict[str, None] = {}
    for node in _with_branches(nodes):
        name = node.target.__name__
        is_known = name in known_converters() and name not in _UNWANTED
        if _is_random(node, name):
            random[name] = None
        elif not is_known and not isinstance(node.meta.get("val"), NUMBERS):
            unknown[name] = None  # not arithmetic of sizes, so it needs a converter
    if random:
        raise UnsupportedOperatorError(
            f"operators that draw random numbers: {', '.join(random)}; in evaluation, call eval()"
        )
    if unknown:
        raise UnsupportedOperatorError(f"operators without a converter: {', '.join(unknown)}")


def _with_branches(nodes: Iterable[Any]) -> Iterable[Any]:
    """Yields calls of operators, including those in the branches of `torch.cond`."""
    for node in nodes:
        if node.op == "call_function":
            yield node
        elif node.op == "get_attr":
            branch = getattr(node.graph.owning_module, node.target)
            if isinstance(branch, torch.fx.GraphModule):
                yield from _with_branches(branch.graph.nodes)


def _is_random(node: Any, name: str) -> bool:
    """Whether an operator draws random numbers; TVM would draw them once, at import, or never."""
    if name in _DROPOUT:
        return len(node.args) < 3 or bool(node.args[2])
    if name in RECURRENT:
        return drops_out(node)
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())

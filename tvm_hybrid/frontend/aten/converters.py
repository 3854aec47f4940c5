"""Which operators can be imported, and how: TVM's converters, and ours in the place of some."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from microkernels.errors import UnsupportedOperatorError

from ..torch_converters import torch_converters
from .along_axis import along_axis_converters
from .cast import cast
from .clamp import clamp
from .concatenate import concatenate
from .promotion import PROMOTED, promoting
from .quantized import QUANTIZED
from .resize import bilinear, nearest, resize
from .scattering import scatter
from .sizes import Sizes
from .slices import cut
from .whole_activations import hardsigmoid, hardswish

Converter = Callable[..., Any]  # (node, importer) -> value

NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)

_DROPOUT = {"native_dropout.default", "dropout.default", "dropout_.default"}
# TVM's have side effects, which have no place among ours.
_UNWANTED = {"_assert_async.default", "_assert_async.msg"}


def new_importer(sizes: Sizes) -> ExportedProgramImporter:
    """TVM's importer of one graph, with all converters in its map, and what these share in it.

    That is `sizes`, and `ranges` of dynamic quantisation by the nodes that choose them.
    """
    importer = ExportedProgramImporter()
    vars(importer).update(sizes=sizes, ranges={})
    table = importer.convert_map
    for name, convert in _ours().items():
        table[name] = functools.partial(convert, importer=importer)
    for name in PROMOTED:
        if name in table:
            table[name] = promoting(importer, name, table[name])
    return importer


@functools.cache
def known_converters() -> frozenset[str]:
    """The names of operators that can be imported, such as "add.Tensor"."""
    return frozenset(ExportedProgramImporter().convert_map) | frozenset(_ours())


@functools.cache
def _ours() -> dict[str, Converter]:
    ours = {
        "convert_element_type.default": cast,
        "clamp.default": clamp,
        "cat.default": concatenate,
        "upsample_nearest2d.vec": nearest,
        "upsample_bilinear2d.vec": bilinear,
        "resize2d.default": resize,
        "slice.Tensor": cut,
        "hardswish.default": hardswish,
        "hardsigmoid.default": hardsigmoid,
        "scatter.src": scatter,
        "scatter_reduce.two": scatter,
    }
    return {**torch_converters(), **QUANTIZED, **along_axis_converters(), **ours}


def refuse_unknown(nodes: Iterable[Any], known: Collection[str]) -> None:
    """Refuses a graph with operators that cannot be imported.

    Raises
    ------
    UnsupportedOperatorError
        Naming all of them.
    """
    unknown: dict[str, None] = {}
    random: dict[str, None] = {}
    for node in nodes:
        if node.op != "call_function":
            continue
        name = node.target.__name__
        if _is_random(node, name):
            random[name] = None
        elif (name not in known or name in _UNWANTED) and _makes_tensors(node):
            unknown[name] = None
    if random:
        raise UnsupportedOperatorError(
            f"operators that draw random numbers: {', '.join(random)}; in evaluation, call eval()"
        )
    if unknown:
        raise UnsupportedOperatorError(f"operators without a converter: {', '.join(unknown)}")


def _is_random(node: Any, name: str) -> bool:
    """Whether an operator draws numbers: TVM would draw them once, when it imports, or never."""
    if name in _DROPOUT:
        return len(node.args) < 3 or bool(node.args[2])
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _makes_tensors(node: Any) -> bool:
    """Whether a node is more than arithmetic of sizes."""
    return not isinstance(node.meta.get("val"), NUMBERS)

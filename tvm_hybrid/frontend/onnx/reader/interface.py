"""Represents inputs and outputs that are sequences or optional by tensors.

x: seq(tensor), of 2 elements        ->  x[0], x[1]: tensor;  SequenceConstruct(x[0], x[1]) -> x
x: optional(tensor), which is there  ->  x: tensor
x: optional(...), which is absent    ->  Optional() -> x
y: seq(tensor), output               ->  y[0], y[1], as many as the program finds
y: optional(seq(tensor)), output     ->  also OptionalHasElement(y) -> y?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import onnx
from onnx import helper

from microkernels.base.errors import ModelError

from ....runtime.tensors import DynamicTensorInfo
from ..graph.freeze_shapes import declared_dims
from ..graph.graph import Graph, dtype_named

Elements = Mapping[str, Sequence[int] | None]
"""Input -> ranks of its sequence's elements; None for an optional value that is absent."""


class Interface(NamedTuple):
    """A declared input or output: the type of its tensors, and whether it is a single tensor."""

    tensor: onnx.TypeProto
    is_sequence: bool = False
    is_optional: bool = False

    @classmethod
    def of(cls, item: onnx.ValueInfoProto) -> Interface:
        """Reads the type of an input or output of a model.

        Raises
        ------
        ModelError
            If its type is not a tensor, or a sequence or optional of tensors.
        """
        found, is_optional = item.type, item.type.HasField("optional_type")
        found = found.optional_type.elem_type if is_optional else found
        is_sequence = found.HasField("sequence_type")
        found = found.sequence_type.elem_type if is_sequence else found
        kind = found.WhichOneof("value")
        if kind not in (None, "tensor_type"):
            raise ModelError(
                f"{item.name!r} is a {kind.removesuffix('_type')}; only tensors, and sequences of "
                "tensors, are supported"
            )
        return cls(found, is_sequence, is_optional)

    def info(self, name: str) -> DynamicTensorInfo:
        """Name, shape and dtype of one of the tensors."""
        kind = self.tensor.tensor_type.elem_type
        dtype = dtype_named(kind) if kind else None
        return DynamicTensorInfo(name, declared_dims(self.tensor), dtype)

    @property
    def is_tensor(self) -> bool:
        """Whether it is a single tensor that is always present."""
        return not self.is_sequence and not self.is_optional

    @property
    def type(self) -> str:
        """The type in ONNX Runtime's notation."""
        text = str(self.info("").type)
        text = f"seq({text})" if self.is_sequence else text
        return f"optional({text})" if self.is_optional else text


def element_name(name: str, place: int) -> str:
    """The name of a sequence's element as an input or output."""
    return f"{name}[{place}]"


def presence_name(name: str) -> str:
    """The name of the output that says whether an optional output is present."""
    return f"{name}?"


def with_tensors(model: onnx.ModelProto, elements: Elements) -> onnx.ModelProto:
    """A copy of a model whose inputs and outputs are tensors in place of sequences."""
    flat = onnx.ModelProto.FromString(model.SerializeToString())
    graph, made = flat.graph, list[onnx.NodeProto]()
    del graph.input[:], graph.node[:]
    for item in model.graph.input:
        declared = Interface.of(item)
        ranks = elements.get(item.name, ())
        if ranks is None:
            kind = item.type.optional_type.elem_type
            made.append(helper.make_node("Optional", [], [item.name], type=kind))
        elif not declared.is_sequence:
            graph.input.append(onnx.ValueInfoProto(name=item.name, type=declared.tensor))
        else:
            names = [element_name(item.name, place) for place in range(len(ranks))]
            kind, dims = declared.tensor.tensor_type.elem_type, declared_dims(declared.tensor)
            # A named size may differ between elements.
            sizes = [size if isinstance(size, int) else None for size in dims or ()]
            for name, rank in zip(names, ranks, strict=True):
                known = sizes if len(sizes) == rank else [None] * rank
                graph.input.append(helper.make_tensor_value_info(name, kind, known))
            operator = "SequenceConstruct" if names else "SequenceEmpty"
            made.append(helper.make_node(operator, names, [item.name]))
    graph.node.extend([*made, *model.graph.node])
    for item in [*graph.output]:
        declared = Interface.of(item)
        if declared.is_optional and declared.is_sequence:
            graph.node.add(
                op_type="OptionalHasElement", input=[item.name], output=[presence_name(item.name)]
            )
            graph.output.add(name=presence_name(item.name))
        if not declared.is_tensor:
            item.ClearField("type")  # the import finds the type
    return flat


def tensors_of(
    outputs: Sequence[onnx.ValueInfoProto], graph: Graph
) -> Iterator[tuple[str, onnx.TypeProto]]:
    """Names and declared types of the tensors that a program returns."""
    for item in outputs:
        if item.name not in graph.sequences:
            yield item.name, item.type
            continue
        tensor = Interface.of(item).tensor
        for place in range(len(graph.sequences[item.name] or ())):
            yield element_name(item.name, place), tensor

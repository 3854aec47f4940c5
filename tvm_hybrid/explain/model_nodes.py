"""The nodes of an ONNX model, and how variables of a program say which node they are of.

    ONNX                                   Relax
    /encoder/0/MatMul (MatMul)             matmul_n17_ = R.matmul(...)
    /encoder/0/Add (Add)                   add_n18_ = R.add(matmul_n17_, ...)

The importer names the variable of a node's value after the operator and the node's number. Passes
keep the variables between kernels, and what they compute on the way to a value has its name, or one
that tells nothing. So the names in a finished program are enough to find the nodes of every kernel:
`node_origins` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

_NUMBER = re.compile(r"(?<=_)n(\d+)(?=_)")
_NO_LETTERS = re.compile(r"\W")


class ModelNode(msgspec.Struct, frozen=True):
    """A node of a model.

    Attributes
    ----------
    text : str
        Its name, or that of its first output if it has none, and its operator: "conv1 (Conv)".
    makers : tuple of int
        Numbers of the nodes that make its inputs.
    """

    text: str
    makers: tuple[int, ...]


class ModelNodes(msgspec.Struct, frozen=True):
    """The nodes of a model that compute at run time, by number.

    Attributes
    ----------
    nodes : mapping of int to ModelNode
    outputs : tuple of int or None
        The node that makes each output of the model; None where none does.
    """

    nodes: Mapping[int, ModelNode]
    outputs: tuple[int | None, ...]


NO_NODES = ModelNodes({}, ())


def variable_name(number: int, operator: str) -> str:
    """The name of the variable of a node's value."""
    return f"{_NO_LETTERS.sub('', operator).lower()}_n{number}_"


def numbers_in(names: Sequence[str]) -> list[int]:
    """The numbers of nodes that names of variables tell, each once."""
    return list(dict.fromkeys(int(each) for name in names for each in _NUMBER.findall(name)))


def texts_in(message: str, nodes: ModelNodes) -> list[str]:
    """The nodes of which a message names variables.

    >>> texts_in("pass FuseTIR fails at add_n3_", ModelNodes({3: ModelNode("/Add (Add)", ())}, ()))
    ['/Add (Add)']
    """
    return [nodes.nodes[n].text for n in numbers_in([message]) if n in nodes.nodes]

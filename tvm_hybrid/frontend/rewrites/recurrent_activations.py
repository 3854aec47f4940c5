"""The activation functions of LSTM, GRU and RNN, with their parameters.

activations=["HardSigmoid", "Tanh", "Elu"], activation_alpha=[0.1, 2.0], activation_beta=[0.4]
    ->  HardSigmoid(alpha=0.1, beta=0.4), Tanh, Elu(alpha=2.0)

As in ONNX Runtime a function takes its parameters from the lists in turn if it has them, and its
defaults once a list is used up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..graph import describe
from ..node_builder import attributes_of

# The parameters of every function and their defaults: those of ONNX's operators. Affine and
# ScaledTanh are operators no more, so theirs have to be given.
_DEFAULTS: dict[str, dict[str, float | None]] = {
    "Affine": {"alpha": None, "beta": None},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "Relu": {},
    "ScaledTanh": {"alpha": None, "beta": None},
    "Sigmoid": {},
    "Softplus": {},
    "Softsign": {},
    "Tanh": {},
    "ThresholdedRelu": {"alpha": 1.0},
}
_NAMES = {name.lower(): name for name in _DEFAULTS}


@dataclass(frozen=True)
class Activation:
    """A function of `_DEFAULTS` with its parameters."""

    name: str
    parameters: dict[str, float]

    @property
    def text(self) -> str:
        """As the template "recurrent" writes it: "HardSigmoid:0.2:0.5"."""
        return ":".join([self.name, *map(repr, self.parameters.values())])


def activations_of(
    node: onnx.NodeProto, defaults: Sequence[str], directions: int
) -> list[Activation]:
    """The functions of all directions, one direction after the other.

    Parameters
    ----------
    defaults
        Names of one direction's functions if the node names none.

    Raises
    ------
    UnsupportedOperatorError
        A function is unknown, or lacks a parameter that has no default.
    ModelError
        There are too few functions or too many.
    """
    attributes = attributes_of(node)
    names = attributes.get("activations", list(defaults) * directions)
    unknown = [name for name in names if name.lower() not in _NAMES]
    if unknown:
        raise UnsupportedOperatorError(
            f"{describe(node)}: activations {unknown} are unknown; there are {sorted(_DEFAULTS)}"
        )
    if len(names) != len(defaults) * directions:
        raise ModelError(
            f"{describe(node)}: {len(names)} activations for {directions} directions, each of "
            f"which has {len(defaults)}"
        )
    lists = {key: iter(attributes.get(f"activation_{key}", [])) for key in ("alpha", "beta")}
    found = []
    for name in (_NAMES[name.lower()] for name in names):
        parameters = {key: next(lists[key], default) for key, default in _DEFAULTS[name].items()}
        missing = [f"activation_{key}" for key, value in parameters.items() if value is None]
        if missing:
            raise UnsupportedOperatorError(
                f"{describe(node)}: {name} has no defaults; {' and '.join(missing)} must say more"
            )
        found.append(
            Activation(name, {k: float(v) for k, v in parameters.items() if v is not None})
        )
    return found

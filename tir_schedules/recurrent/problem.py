"""What a recurrent region computes: its cell, its sizes, and which inputs it has."""

from __future__ import annotations

from dataclasses import dataclass

from microkernels.base.errors import ConfigError
from tir_schedules.core.attributes import Attribute
from tir_schedules.core.region import Region, Tensor

RECURRENT = "recurrent"
DIRECTIONS = ("forward", "reverse", "bidirectional")
GATES = {"lstm": 4, "gru": 3, "gru_linear": 3, "rnn": 1}
"""Gates by cell. "gru_linear" multiplies by the weight before it resets (linear_before_reset)."""
STATES = {"lstm": 2, "gru": 1, "gru_linear": 1, "rnn": 1}
OPTIONAL = ("hidden", "memory", "bias", "peepholes", "lengths", "scales")
"""Inputs after those that all regions have, in order; the attribute "given" names them."""
WEIGHTS = ("float32", "float64", "float16", "bfloat16", "int8", "int16")
"""Types of a weight. Products of narrow floats are summed in float32. If a CPU multiplies bfloat16,
h is first rounded to it. For integers h is first rounded to 8 bits; "scales" are those of the
weight's columns. "int16" holds 8-bit integers less a zero point."""


@dataclass
class RecurrentProblem:
    """A recurrent layer.

    Attributes
    ----------
    cell : str
        One of `GATES`.
    direction : str
        One of `DIRECTIONS`.
    steps, batch, hidden : int
        Sizes; steps and batch may be symbolic.
    activations : tuple of str
        The functions of a step, in ONNX's order, as `activations` writes them.
    clip : float
        Bound of the arguments of gate functions; 0 if there is none.
    coupled : bool
        Whether an LSTM forgets as much as it takes in (input_forget).
    finals : bool
        Whether the final states follow the hidden states of all steps.
    given : tuple of str
        The inputs of `OPTIONAL` that exist.
    weight_dtype : str
        One of `WEIGHTS`.
    """

    cell: str
    direction: str
    steps: int
    batch: int
    hidden: int
    activations: tuple[str, ...]
    clip: float
    coupled: bool
    finals: bool
    given: tuple[str, ...]
    weight_dtype: str = "float32"

    @staticmethod
    def of(region: Region) -> RecurrentProblem:
        """The problem of a region.

        Raises
        ------
        ConfigError
            If the template does not build the region.
        """
        reason = misfit(region)
        if reason is not None:
            raise ConfigError(f"{reason}, in {region.key}")
        return _read(region)

    def __post_init__(self) -> None:
        self.directions = 2 if self.direction == "bidirectional" else 1
        # Whether h is quantised before each product; the type of everything but the weight.
        self.quantized = self.weight_dtype in ("int8", "int16")
        self.dtype = "float64" if self.weight_dtype == "float64" else "float32"
        # A cell's states: h, and of an LSTM c; and how many of them follow the steps' results.
        self.gates, self.states = GATES[self.cell], STATES[self.cell]
        self.shown = self.states if self.finals else 0
        # The gates of each product of a step: a GRU resets h between two products.
        self.products: tuple[tuple[int, ...], ...] = (tuple(range(self.gates)),)
        if self.cell == "gru":
            self.products = ((0, 1), (2,))


def misfit(region: Region) -> str | None:
    """Why a region is not what the template builds, or None."""
    if region.epilogue or region.operands:
        return "an epilogue"
    part, weight, *others = region.inputs
    if len(part.shape) != 3 or len(weight.shape) != 3:
        return f"inputs {part} and {weight}"
    problem = _read(region)
    wrong = [tensor for tensor in (part, region.output) if tensor.dtype != problem.dtype]
    wrong += [weight] * (weight.dtype not in WEIGHTS)
    if wrong:
        return f"a tensor of type {wrong[0].dtype}"
    if not problem.hidden:
        return "no hidden values"
    if problem.quantized != ("scales" in problem.given):
        return f"a weight of type {weight.dtype} and inputs {problem.given}"
    if problem.quantized and problem.cell != "lstm":
        return f"a weight of 8 bits of {problem.cell}"
    found = [tensor.shape for tensor in (part, weight, *others, region.output)]
    wanted = [tensor.shape for tensor in tensors_of(problem)]
    return None if found == wanted else f"shapes {found}, not {wanted}"


def tensors_of(problem: RecurrentProblem) -> list[Tensor]:
    """Inputs and output of a region: the gates' input parts, the weight, the optional ones."""
    steps, batch, hidden, sides = problem.steps, problem.batch, problem.hidden, problem.directions
    width, dtype = problem.gates * hidden, problem.dtype
    optional = {
        "hidden": Tensor((sides, batch, hidden), dtype),
        "memory": Tensor((sides, batch, hidden), dtype),
        "bias": Tensor((sides, hidden), dtype),
        "peepholes": Tensor((sides, 3 * hidden), dtype),
        "lengths": Tensor((batch,), "int32"),
        "scales": Tensor((sides, width), "float32"),
    }
    return [
        Tensor((steps, batch, sides * width), dtype),
        Tensor((sides, width, hidden), problem.weight_dtype, True),
        *(optional[name] for name in problem.given),
        Tensor((steps + problem.shown, sides, batch, hidden), dtype),
    ]


def region_of(problem: RecurrentProblem) -> Region:
    """The region of a problem."""
    *inputs, output = tensors_of(problem)
    attrs: dict[str, Attribute] = {
        "cell": problem.cell,
        "direction": problem.direction,
        "activations": " ".join(problem.activations),
        "clip": problem.clip,
        "coupled": int(problem.coupled),
        "finals": int(problem.finals),
        "given": " ".join(problem.given),
    }
    return Region(op=RECURRENT, inputs=tuple(inputs), output=output, attrs=attrs)


def _read(region: Region) -> RecurrentProblem:
    """The problem, its sizes from the first two inputs."""
    attrs = region.attrs
    (steps, batch, _), (_, _, hidden) = (tensor.shape for tensor in region.inputs[:2])
    given = str(attrs["given"])
    return RecurrentProblem(
        cell=str(attrs["cell"]),
        direction=str(attrs["direction"]),
        steps=steps,
        batch=batch,
        hidden=hidden,
        activations=tuple(str(attrs["activations"]).split(" ")),
        clip=region.real("clip", 0.0),
        coupled=bool(region.integer("coupled", 0)),
        finals=bool(region.integer("finals", 1)),
        given=tuple(given.split(" ")) if given else (),
        weight_dtype=region.inputs[1].dtype,
    )

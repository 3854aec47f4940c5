"""EpilogueSteps: the epilogue of a region while it grows.

A value inside a region is named ("acc", 0), ("operand", i) or ("step", i).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tvm import relax

from tir_schedules.core.region import Step, Tensor

Value = tuple[str, int]
ACC = ("acc", 0)


@dataclass
class EpilogueSteps:
    """The epilogue of a region while it grows.

    Attributes
    ----------
    shape : tuple of int
        Shape of the values inside.
    values : dict
        What the variables inside stand for.
    operands : list of (relax.Expr, Tensor)
        What the epilogue reads: the expression and the tensor the kernel sees, which has another
        shape only if a reshape was passed.
    steps : list of (operator, arguments, number, dtype)
        In execution order.
    inlined : list of int
        Positions of the bindings computed anew.
    own_range : relax.Expr or None
        What stands in `DataflowGraph.range_items` for the range that the kernel itself finds.
    """

    shape: tuple[int, ...]
    values: dict[relax.Expr, Value] = field(default_factory=dict)
    operands: list[tuple[relax.Expr, Tensor]] = field(default_factory=list)
    steps: list[tuple[str, tuple[Value, ...], float | None, str]] = field(default_factory=list)
    inlined: list[int] = field(default_factory=list)
    own_range: relax.Expr | None = None

    def copy(self) -> EpilogueSteps:
        """An independent copy, to come back to."""
        return EpilogueSteps(
            self.shape,
            dict(self.values),
            list(self.operands),
            list(self.steps),
            list(self.inlined),
            self.own_range,
        )

    def numbered(self) -> tuple[Step, ...]:
        """The steps that are read, with their arguments numbered as a Region wants them."""
        read = {len(self.steps) - 1}
        for index in reversed(range(len(self.steps))):
            if index in read:
                read.update(number for kind, number in self.steps[index][1] if kind == "step")
        position = {index: place for place, index in enumerate(sorted(read))}
        first = 1 + len(self.operands)

        def number(value: Value) -> int:
            kind, index = value
            return {"acc": 0, "operand": 1 + index, "step": first + position.get(index, 0)}[kind]

        return tuple(
            Step(op, tuple(map(number, args)), value, dtype)
            for index, (op, args, value, dtype) in enumerate(self.steps)
            if index in read
        )

    def step(
        self,
        op: str,
        args: tuple[Value, ...],
        dtype: str = "float32",
        number: float | None = None,
    ) -> Value:
        """Adds a step."""
        self.steps.append((op, args, number, dtype))
        return ("step", len(self.steps) - 1)

    def number(self, number: float) -> Value:
        """A constant, once."""
        return self.once(("constant", (), number, "float32"))

    def once(self, entry: tuple[str, tuple[Value, ...], float | None, str]) -> Value:
        """A step, once."""
        # As text: 0.0 == -0.0, and a NaN is not equal to itself.
        known = [repr(step) for step in self.steps]
        if repr(entry) not in known:
            return self.step(entry[0], entry[1], entry[3], entry[2])
        return ("step", known.index(repr(entry)))

    def operand(self, expr: relax.Expr, tensor: Tensor) -> Value:
        """An operand, once."""
        entry = (expr, Tensor(tensor.shape, tensor.dtype))
        if entry not in self.operands:
            self.operands.append(entry)
        return ("operand", self.operands.index(entry))

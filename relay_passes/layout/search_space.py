"""LayoutProblem: the choices for the layouts of a block, for tuning.

    problem.operators       3 max_pool2d 1x64x56x56: channels first or last; ...
    problem.cheapest({"3 max_pool2d 1x64x56x56": FIRST})
                            labels of all operators if this one runs channels first

Only operators with much work choose a layout, as in ALT (arXiv 2210.12415). An elementwise operator
between them either takes over a layout or has the reorder next to it; here the minimum cut decides.
Names contain the operator's position, so they are valid only for blocks with the same key: the same
operators on the same shapes. Weights are not part of the key: their layout belongs to the
configuration of each region.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tvm import ir, relax

from relay_passes.ir.graph import DataflowGraph, op_name, region_tensor
from relay_passes.ir.traits import CHANNEL_WISE, ELEMENTWISE, QUANTIZING, VIEWS

from .assign_layouts import LayoutPlan
from .minimum_cut import FIRST, LAST

Labels = Mapping[str, int]
LABEL_NAMES = {FIRST: "first", LAST: "last"}
_FOLLOWERS = {*ELEMENTWISE, *QUANTIZING, *VIEWS, *CHANNEL_WISE, "relax.split"}


@dataclass(frozen=True)
class LayoutOperator:
    """An operator that can run in two layouts.

    Attributes
    ----------
    name : str
        Its position in the block, its operator, and the shape of its result as imported.
    default : int
        Its label in the cheapest cut.
    leads : bool
        Whether to search for its label; otherwise the label follows from its neighbours.
    neighbours : tuple of str
        Leading operators that exchange tensors with it, directly or through followers.
    """

    name: str
    default: int
    leads: bool
    neighbours: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayoutChoice:
    """Labels for a block.

    Attributes
    ----------
    labels : mapping
        Name of every operator of the problem -> label.
    source : str
        Where the labels come from.
    """

    labels: Labels
    source: str


class LayoutProblem:
    """The operators of a block that can run in two layouts.

    Parameters
    ----------
    plan : LayoutPlan
        The block.

    Attributes
    ----------
    key : str
        Equal for blocks with the same operators on the same shapes.
    operators : tuple of LayoutOperator
        In the order of the block.
    default : dict
        The labels of the cheapest cut, by name.
    """

    def __init__(self, plan: LayoutPlan) -> None:
        self._plan = plan
        self.key = block_key(plan.graph)
        self._positions: dict[str, int] = {}
        for position, role in enumerate(plan.roles):
            own = plan.leader(position) == position
            if role is not None and own and len({*role.labels, *role.on_request}) > 1:
                self._positions[_name(plan.graph, position)] = position
        around = _neighbours(plan, {i for i in self._positions.values() if self._leads(i)})
        names = {position: name for name, position in self._positions.items()}
        self.operators = tuple(
            LayoutOperator(
                name,
                plan.labels[position],
                self._leads(position),
                tuple(names[other] for other in sorted(around.get(position, ()))),
            )
            for name, position in self._positions.items()
        )
        self.default = {each.name: each.default for each in self.operators}

    def cheapest(self, wanted: Labels) -> dict[str, int] | None:
        """The labels with the fewest moved bytes, given wanted labels of some operators.

        None if these labels are impossible.
        """
        labels = self._labels(wanted)
        if labels is None:
            return None
        return {name: labels[position] for name, position in self._positions.items()}

    def refusal(self, labels: Labels) -> str | None:
        """Why the block cannot have these labels; None if it can."""
        if set(labels) != set(self._positions):
            return "they belong to other operators"
        for name, label in labels.items():
            role = self._plan.roles[self._positions[name]]
            assert role is not None
            if label not in (*role.labels, *role.on_request):
                return f"{name} cannot run with channels {LABEL_NAMES.get(label, label)}"
        return "a tuple would have to be reordered" if self._labels(labels) is None else None

    def apply(self, labels: Labels) -> None:
        """Gives the plan these labels, which `refusal` must not refuse."""
        found = self._labels(labels)
        assert found is not None
        self._plan.labels = found

    def differences(self, labels: Labels) -> list[str]:
        """The operators whose label differs from the cheapest cut."""
        return [name for name in self.default if labels[name] != self.default[name]]

    def _labels(self, wanted: Labels) -> list[int] | None:
        return self._plan.cheapest({self._positions[name]: wanted[name] for name in wanted})

    def _leads(self, position: int) -> bool:
        return op_name(self._plan.graph.value(position)) not in _FOLLOWERS


ChooseLabels = Callable[[LayoutProblem], "LayoutChoice | None"]


def block_key(graph: DataflowGraph) -> str:
    """A hash of a block's operators, their attributes, operands and shapes, without constants."""
    inputs: dict[relax.Expr, int] = {}

    def text(expr: relax.Expr) -> str:
        if isinstance(expr, relax.Var):
            if expr in graph.position:
                return f"%{graph.position[expr]}"
            return f"@{inputs.setdefault(expr, len(inputs))}:{expr.ty}"
        if isinstance(expr, ir.GenericConst):
            return f"const:{expr.ty}"
        if isinstance(expr, relax.Tuple):
            return f"({','.join(map(text, expr.fields))})"
        if isinstance(expr, relax.Call):
            name = op_name(expr) or str(expr.op)
            return f"{name}({','.join(map(text, expr.args))}){expr.attrs}"
        if isinstance(expr, relax.TupleGetItem):
            return f"{text(expr.tuple_value)}[{expr.index}]"
        return str(expr)

    digest = hashlib.sha256()
    for binding in graph.bindings:
        output = "" if isinstance(binding.var, relax.DataflowVar) else " out"
        digest.update(f"{text(binding.value)}:{binding.var.ty}{output}\n".encode())
    return digest.hexdigest()[:16]


def _name(graph: DataflowGraph, position: int) -> str:
    tensor = region_tensor(graph.bindings[position].var)
    shape = "tuple" if tensor is None else "x".join(map(str, tensor.shape))
    operator = op_name(graph.value(position)).removeprefix("relax.").removeprefix("nn.")
    return f"{position} {operator} {shape}"


def _neighbours(plan: LayoutPlan, leading: set[int]) -> dict[int, set[int]]:
    """For every leading operator, the leading ones that it meets directly or through followers."""
    linked: dict[int, set[int]] = {}
    for position, role in enumerate(plan.roles):
        if role is None:
            continue
        for reader in plan.readers(position):
            one, other = plan.leader(position), plan.leader(reader)
            linked.setdefault(one, set()).add(other)
            linked.setdefault(other, set()).add(one)
    found: dict[int, set[int]] = {}
    for start in leading:  # searches through operators that do not lead
        seen, stack = {start}, [start]
        while stack:
            for other in linked.get(stack.pop(), ()):
                role = plan.roles[other]
                if other not in seen and role is not None:
                    seen.add(other)
                    # A layout ends at a convolution that runs in one layout only.
                    if other not in leading and len(role.labels) > 1:
                        stack.append(other)
        found[start] = seen & leading - {start}
    return found

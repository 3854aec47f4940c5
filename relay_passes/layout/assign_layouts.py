"""LayoutPlan: a label for every operator of a block, by the cheapest cut or as asked for."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from relay_passes.ir.axes import moves
from relay_passes.ir.graph import DataflowGraph, variables
from relay_passes.ir.quantization import is_transposable

from .channel_layouts import LABELS, Form, Forms, How
from .minimum_cut import FIRST, LayoutCut
from .operator_rules import role_of

_BYTE = 1 << 16  # so that of equally many bytes fewer reorders win
_IMPOSSIBLE = 1 << 90


class LayoutPlan:
    """The operators of a block and the layouts that they run in.

    Parameters
    ----------
    graph : DataflowGraph
        The block, in A-normal form.
    planes : bool
        As of `Forms`.

    Attributes
    ----------
    graph : DataflowGraph
        The block.
    forms : Forms
        Its tensors.
    roles : list of (Role or None)
        Its operators.
    labels : list of int
        Their labels; at first those that make the bytes of all reorders together least.
    """

    def __init__(self, graph: DataflowGraph, planes: bool = True) -> None:
        self.graph = graph
        self.forms = Forms(graph, planes)
        self.roles = [role_of(self.forms, i) for i in range(len(graph.bindings))]
        self._readers: dict[relax.Var, list[int]] = {}
        self._borders: dict[relax.Var, set[int]] = {}
        self._note_readers()
        labels = self.cheapest({})
        # Everything as imported is always possible, with convolutions between reorders: every
        # operator that makes or reads a tuple can run as imported.
        assert labels is not None
        self.labels = labels

    @property
    def changes(self) -> bool:
        """Whether anything runs in another layout than it is imported in."""
        return any(not self.as_imported(i) for i in range(len(self.roles)))

    def as_imported(self, position: int) -> bool:
        """Whether an operator and all that it reads stay as they are."""
        role, label = self.roles[position], self.labels[position]
        if role is None:
            return True
        result = self.forms.of(self.graph.bindings[position].var)
        if result is None or result.order(label) != tuple(range(result.rank)):
            return False
        for operand in role.operands:
            form, order = self.forms.of(operand.expr), operand.orders[label]
            if operand.how is How.SAME and form is not None:
                order = form.order(label)
            if order != tuple(range(len(order))):
                return False
        return True

    def leader(self, position: int) -> int:
        """The operator whose label an operator has: itself, or what makes a tuple that it opens."""
        value = self.graph.value(position)
        while isinstance(value, relax.TupleGetItem) and self.roles[position] is not None:
            position = self.graph.position[value.tuple_value]
            value = self.graph.value(position)
        return position

    def readers(self, position: int) -> list[int]:
        """The operators that read the result of one in the layout that they run in."""
        return self._readers.get(self.graph.bindings[position].var, [])

    def cheapest(self, wanted: Mapping[int, int]) -> list[int] | None:
        """The labels that cost least among those with which some operators have wanted ones.

        Parameters
        ----------
        wanted : mapping
            Position -> label, one of those that its role can run in or allows if it is asked for.

        Returns
        -------
        list of int, or None
            A label for every position; None if a tuple would have to be reordered.
        """
        cut = LayoutCut()
        nodes: list[int] = []
        for position, role in enumerate(self.roles):
            leader = self.leader(position)
            if role is None:
                nodes.append(FIRST)  # not asked for
            elif leader != position:
                nodes.append(nodes[leader])
            else:
                nodes.append(self._node(cut, position, wanted.get(position)))
        read = {
            var: self._borders.get(var, set()) | {nodes[i] for i in self._readers.get(var, [])}
            for var in {**self._readers, **self._borders}
        }
        for var, readers in read.items():
            form = self._form(var)
            cost = form.bytes * _BYTE + 1 if form.moves else 1
            cut.reorder(self._producer(var, nodes), readers, cost if form.tensor else _IMPOSSIBLE)
        labels = cut.solve()
        for var, readers in read.items():
            made = labels[self._producer(var, nodes)]
            if not self._form(var).tensor and any(labels[node] != made for node in readers):
                return None
        return [labels[node] for node in nodes]

    def _node(self, cut: LayoutCut, position: int, wanted: int | None) -> int:
        """The node of an operator."""
        role = self.roles[position]
        assert role is not None
        node = cut.node()
        for label in LABELS:
            allowed = label in role.labels if wanted is None else label == wanted
            if not allowed:
                cut.forbid(node, label)
            cost = role.bytes[label]
            for operand in role.operands:  # that only this operator has permuted
                if operand.how is How.TRANSPOSED and not is_transposable(self.graph, operand.expr):
                    form, order = self.forms.of(operand.expr), operand.orders[label]
                    assert form is not None
                    shape = (1,) * (len(order) - form.rank) + form.shape
                    cost += form.bytes * moves(shape, order)
            cut.price(node, label, cost * _BYTE)
        return node

    def _producer(self, var: relax.Var, nodes: list[int]) -> int:
        """The node of what makes a variable."""
        position = self.graph.position.get(var)
        if position is not None and self.roles[position] is not None:
            return nodes[position]
        return self._form(var).imported

    def _form(self, var: relax.Var) -> Form:
        form = self.forms.labelled(var)
        assert form is not None
        return form

    def _note_readers(self) -> None:
        """Who reads each variable: operators in the layout that they run in, or as imported."""
        absorbed, graph = self._absorbed(), self.graph
        for position, binding in enumerate(graph.bindings):
            role, value = self.roles[position], graph.value(position)
            whole = position in absorbed or (role is not None and role.absorbs)
            plain = set() if whole else set(variables(value))
            for operand in role.operands if role is not None else ():
                same = operand.how is How.SAME and self.forms.labelled(operand.expr) is not None
                if same and isinstance(operand.expr, relax.Var):
                    self._readers.setdefault(operand.expr, []).append(position)
                computed = operand.how is How.TRANSPOSED and is_transposable(graph, operand.expr)
                if computed or operand.how is How.SAME:
                    plain.discard(operand.expr)
            if not isinstance(binding.var, relax.DataflowVar):
                plain.add(binding.var)
            for var in plain:
                form = self.forms.labelled(var)
                if form is not None:
                    self._borders.setdefault(var, set()).add(form.imported)

    def _absorbed(self) -> set[int]:
        """Positions of bindings that nothing needs any more."""
        absorbed = {position for role in self.roles if role for position in role.absorbs}
        whole = {i for i, role in enumerate(self.roles) if role and role.absorbs}
        while True:
            needed = {
                position
                for position in absorbed
                if self.graph.escapes(self.graph.bindings[position].var, absorbed | whole)
            }
            if not needed:
                return absorbed
            absorbed -= needed

"""LayoutPlan: a label for every operator of a block, by the cheapest cut or on request."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from relay_passes.ir.axes import moves
from relay_passes.ir.graph import DataflowGraph, variables
from relay_passes.ir.quantization import is_transposable

from .channel_layouts import LABELS, Form, Forms, How
from .minimum_cut import FIRST, LayoutCut
from .operator_rules import role_of

_BYTE = 1 << 16  # so that fewer reorders win if the bytes are equal
_IMPOSSIBLE = 1 << 90


class LayoutPlan:
    """The operators of a block and the layouts that they run in.

    Parameters
    ----------
    graph : DataflowGraph
        The block, in A-normal form.
    planes : bool
        As in `Forms`.

    Attributes
    ----------
    graph : DataflowGraph
        The block.
    forms : Forms
        The block's tensors.
    roles : list of (Role or None)
        The block's operators.
    labels : list of int
        The operators' labels; at first those with the fewest reordered bytes in total.
    """

    def __init__(self, graph: DataflowGraph, planes: bool = True) -> None:
        self.graph = graph
        self.forms = Forms(graph, planes)
        self.roles = [role_of(self.forms, i) for i in range(len(graph.bindings))]
        self._readers: dict[relax.Var, list[int]] = {}
        self._borders: dict[relax.Var, set[int]] = {}
        self._note_readers()
        labels = self.cheapest({})
        # Running everything as imported, with convolutions between reorders, is always possible:
        # every operator that makes or reads a tuple can run as imported.
        assert labels is not None
        self.labels = labels

    @property
    def changes(self) -> bool:
        """Whether any operator runs in another layout than the imported one."""
        return any(not self.as_imported(i) for i in range(len(self.roles)))

    def as_imported(self, position: int) -> bool:
        """Whether an operator and all its operands keep their imported layout."""
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
        """The operator with an operator's label: itself, or for an item the tuple's maker."""
        value = self.graph.value(position)
        while isinstance(value, relax.TupleGetItem) and self.roles[position] is not None:
            position = self.graph.position[value.tuple_value]
            value = self.graph.value(position)
        return position

    def readers(self, position: int) -> list[int]:
        """The operators that read an operator's result in the layout that they run in."""
        return self._readers.get(self.graph.bindings[position].var, [])

    def cheapest(self, wanted: Mapping[int, int]) -> list[int] | None:
        """The cheapest labels, given wanted labels of some operators.

        Parameters
        ----------
        wanted : mapping
            Position -> label, from the labels or the `on_request` labels of its role.

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
                nodes.append(FIRST)  # its label is not used
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
        """Adds the node of an operator with its costs."""
        role = self.roles[position]
        assert role is not None
        node = cut.node()
        for label in LABELS:
            allowed = label in role.labels if wanted is None else label == wanted
            if not allowed:
                cut.forbid(node, label)
            cost = role.bytes[label]
            for operand in role.operands:  # operands permuted for this operator only
                if operand.how is How.TRANSPOSED and not is_transposable(self.graph, operand.expr):
                    form, order = self.forms.of(operand.expr), operand.orders[label]
                    assert form is not None
                    shape = (1,) * (len(order) - form.rank) + form.shape
                    cost += form.bytes * moves(shape, order)
            cut.price(node, label, cost * _BYTE)
        return node

    def _producer(self, var: relax.Var, nodes: list[int]) -> int:
        """The node of the operator that makes a variable."""
        position = self.graph.position.get(var)
        if position is not None and self.roles[position] is not None:
            return nodes[position]
        return self._form(var).imported

    def _form(self, var: relax.Var) -> Form:
        form = self.forms.labelled(var)
        assert form is not None
        return form

    def _note_readers(self) -> None:
        """Notes the readers of each variable: operators in their layout, or as imported."""
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
        """Positions of absorbed bindings that no other binding needs."""
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

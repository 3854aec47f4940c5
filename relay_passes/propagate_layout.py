"""Layouts: channels last from border to border, and as few bytes reordered as can be.

Before

    lv = R.nn.conv2d(x, const_w)                        # NCHW, OIHW
    lv1 = R.add(lv, const_b)                            # [1, C, 1, 1]
    gv = R.nn.max_pool2d(lv1)                           # NCHW

After

    lv = R.permute_dims(x, [0, 2, 3, 1])
    lv1 = R.nn.conv2d(lv, const_w', data_layout="NHWC", kernel_layout="HWIO")
    lv2 = R.add(lv1, const_b')                          # [C]
    lv3 = R.nn.max_pool2d(lv2, layout="NHWC")
    gv = R.permute_dims(lv3, [0, 3, 1, 2])

Convolutions run channels last; inputs, outputs and operators that `layout_roles` does not know are
as imported; everything else runs in either layout. The labels that make the bytes of all reorders
together least are a minimum cut (`layout_cut`): exact, as in arXiv 2210.12415, section 5, for
chains. A reorder of a tensor with one channel or one pixel is a reshape and costs nothing.
Constants are permuted now.
"""

from __future__ import annotations

from tvm import ir, relax

from .axis_view import view_axes
from .graph import DataflowGraph, op_name, static_tensor, variables
from .layout_cut import FIRST, LAST, LayoutCut
from .layout_roles import role_of
from .layouts import LABELS, Form, Forms, How, Operand, Role, moves, permuted
from .replace_values import same_shape
from .rewrite_blocks import Bindings, block_pass
from .turned_constants import is_turnable, turned

_BYTE = 1 << 16  # so that of equally many bytes fewer reorders win
_IMPOSSIBLE = 1 << 90


def propagate_layout() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return block_pass("tvm_hybrid.propagate_layout", _rewrite)


def _rewrite(graph: DataflowGraph) -> list[relax.Binding] | None:
    """The block in the layouts that cost least; None if no operator changes."""
    plan = _Plan(graph)
    if not plan.changes:
        return None
    return _Writer(plan).block.bindings


class _Plan:
    """A label for every operator of a block.

    Attributes
    ----------
    graph : DataflowGraph
        The block.
    forms : Forms
        Its tensors.
    roles : list of (Role or None)
        Its operators.
    labels : list of int
        Their labels.
    """

    def __init__(self, graph: DataflowGraph) -> None:
        self.graph = graph
        self.forms = Forms(graph)
        self.roles = [role_of(self.forms, i) for i in range(len(graph.bindings))]
        self._cut = LayoutCut()
        self._operators: list[int] = []
        for position in range(len(graph.bindings)):
            self._operators.append(self._operator(position))
        self._readers: dict[relax.Var, set[int]] = {}
        self._note_readers()
        for var, readers in self._readers.items():
            form = self.forms.labelled(var)
            assert form is not None
            self._cut.reorder(self._producer(var), readers, _reorder_cost(form))
        labels = self._cut.solve()
        self.labels = [labels[node] for node in self._operators]

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
            order = self.read_order(operand, label)
            if order != tuple(range(len(order))):
                return False
        return True

    def read_order(self, operand: Operand, label: int) -> tuple[int, ...]:
        """The order in which an operand is read."""
        if operand.how is How.TURNED:
            return operand.orders[label]
        form = self.forms.of(operand.expr)
        if form is None or operand.how is How.PLAIN:
            return ()
        return form.order(LAST if operand.how is How.EITHER else label)

    def _operator(self, position: int) -> int:
        """The node of an operator."""
        role, value = self.roles[position], self.graph.value(position)
        if role is None:
            return FIRST  # not asked for
        if isinstance(value, relax.TupleGetItem):
            return self._operators[self.graph.position[value.tuple_value]]
        node = self._cut.node()
        for label in LABELS:
            if label not in role.labels:
                self._cut.forbid(node, label)
            cost = role.bytes[label] + sum(self._turning(each, label) for each in role.operands)
            self._cut.price(node, label, cost * _BYTE)
        return node

    def _turning(self, operand: Operand, label: int) -> int:
        """Bytes of an operand that only this operator has permuted."""
        if operand.how is not How.TURNED or is_turnable(self.graph, operand.expr):
            return 0
        form = self.forms.of(operand.expr)
        assert form is not None
        order = operand.orders[label]
        shape = (1,) * (len(order) - form.rank) + form.shape
        return form.bytes if moves(shape, order) else 0

    def _producer(self, var: relax.Var) -> int:
        """The node of what makes a variable."""
        position = self.graph.position.get(var)
        if position is not None and self.roles[position] is not None:
            return self._operators[position]
        form = self.forms.labelled(var)
        assert form is not None
        return form.imported

    def _note_readers(self) -> None:
        """Nodes that read each variable in the layout that they run in."""
        absorbed, graph = self._absorbed(), self.graph
        for position, binding in enumerate(graph.bindings):
            role, value = self.roles[position], graph.value(position)
            whole = position in absorbed or (role is not None and role.absorbs)
            plain = set() if whole else set(variables(value))
            for operand in role.operands if role is not None else ():
                if operand.how is How.SAME and isinstance(operand.expr, relax.Var):
                    self._note(operand.expr, self._operators[position])
                computed = operand.how is How.TURNED and is_turnable(graph, operand.expr)
                if computed or operand.how in (How.SAME, How.EITHER):
                    plain.discard(operand.expr)
            if not isinstance(binding.var, relax.DataflowVar):
                plain.add(binding.var)
            for var in plain:
                form = self.forms.labelled(var)
                if form is not None:
                    self._note(var, form.imported)

    def _note(self, var: relax.Var, reader: int) -> None:
        if self.forms.labelled(var) is None:
            return
        self._readers.setdefault(var, set()).add(reader)

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


def _reorder_cost(form: Form) -> int:
    if not form.tensor:
        return _IMPOSSIBLE
    return form.bytes * _BYTE + 1 if form.moves else 1


class _Writer:
    """The block as planned.

    Attributes
    ----------
    block : Bindings
        What has been written.
    """

    def __init__(self, plan: _Plan) -> None:
        self.plan = plan
        self.block = Bindings()
        self._stored: dict[tuple[relax.Expr, int], relax.Expr] = {}
        self._reshaped: dict[relax.Expr, relax.Expr] = {}
        for position, binding in enumerate(plan.graph.bindings):
            role = plan.roles[position]
            if role is None or plan.as_imported(position):
                self._bind(binding.var, plan.graph.value(position))
            else:
                self._write(binding.var, role, plan.labels[position])

    def _write(self, var: relax.Var, role: Role, label: int) -> None:
        value = role.build(label, [self._operand(each, label) for each in role.operands])
        form = self.plan.forms.labelled(var)
        if form is None or form.imported == label:
            self._bind(var, value)
            return
        stored = self._emit(value, str(var.name))
        self._stored[var, label] = stored
        if form.tensor:
            self._bind(var, self._reordered(stored, form, label, form.imported))

    def _operand(self, operand: Operand, label: int) -> relax.Expr:
        expr = operand.expr
        if operand.how is How.SAME:
            return self._in_layout(expr, label)
        if operand.how is How.EITHER:
            return self._in_layout(expr, LAST)
        if operand.how is How.PLAIN:
            return expr
        graph, order = self.plan.graph, operand.orders[label]
        if is_turnable(graph, expr):
            return turned(graph, expr, order, operand.trims, self.block)
        form = self.plan.forms.of(expr)
        assert form is not None
        if form.rank == 0:  # a number of run time
            return expr
        shape = (1,) * (len(order) - form.rank) + form.shape
        if moves(shape, order):
            padded = expr if shape == form.shape else self._emit(relax.op.reshape(expr, shape))
            return self._emit(relax.op.permute_dims(padded, order))
        wanted = permuted(shape, order)
        return expr if wanted == form.shape else self._emit(relax.op.reshape(expr, wanted))

    def _in_layout(self, expr: relax.Expr, label: int) -> relax.Expr:
        """A variable in a layout; reordered once."""
        form = self.plan.forms.labelled(expr)
        if form is None or label == form.imported:
            return expr
        if (expr, label) not in self._stored:
            value = self._reordered(expr, form, form.imported, label)
            self._stored[expr, label] = self._emit(value, f"{expr.name}_{_NAMES[label]}")
        return self._stored[expr, label]

    def _reordered(self, expr: relax.Expr, form: Form, source: int, target: int) -> relax.Expr:
        order, shape = form.between(source, target), form.stored(target)
        if moves(form.stored(source), order):
            return relax.op.permute_dims(expr, order)
        return expr if form.stored(source) == shape else relax.op.reshape(expr, shape)

    def _bind(self, var: relax.Var, value: relax.Expr) -> None:
        """Binds an expression to a variable of the original block."""
        value = self._simple(value)
        self.block.bind(var, value)
        self._note_reshape(var, value)

    def _emit(self, value: relax.Expr, name: str = "lv") -> relax.Expr:
        """Binds an expression to a new variable."""
        value = self._simple(value)
        if isinstance(value, relax.Var):
            return value
        var = self.block.emit(value, name)
        self._note_reshape(var, value)
        return var

    def _simple(self, value: relax.Expr) -> relax.Expr:
        """An expression whose operands are all bound; one reshape instead of two."""
        if not isinstance(value, relax.Call):
            return value
        args = [self._emit(arg) if isinstance(arg, relax.Call) else arg for arg in value.args]
        value = relax.Call(value.op, args, value.attrs, value.ty_args)
        if op_name(value) == "relax.permute_dims":
            value = _as_reshape(self.block.builder.normalize(value))
        if op_name(value) != "relax.reshape" or value.args[0] not in self._reshaped:
            return value
        source = self._reshaped[value.args[0]]
        normal = self.block.builder.normalize(value)
        return source if same_shape(source, normal) else relax.op.reshape(source, value.args[1])

    def _note_reshape(self, var: relax.Var, value: relax.Expr) -> None:
        if op_name(value) == "relax.reshape":
            self._reshaped[var] = value.args[0]


def _as_reshape(call: relax.Call) -> relax.Call:
    """A permutation; as a reshape if it moves nothing."""
    source, result, axes = static_tensor(call.args[0]), static_tensor(call), view_axes(call)
    if source is None or result is None or axes is None:
        return call
    order = tuple(axis for axis in axes if axis is not None)
    return call if moves(source.shape, order) else relax.op.reshape(call.args[0], result.shape)


_NAMES = {FIRST: "channels_first", LAST: "channels_last"}

"""Layouts: channels last throughout a model, with as few bytes reordered as possible.

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

Convolutions run channels last; f32 convolutions of one tap run channels first if x and the result
are stored that way. Inputs, outputs and operators that `layout.operator_rules` does not know stay
as imported. Everything else runs in either layout. A minimum cut (`layout.minimum_cut`) gives the
labels with the fewest reordered bytes; it is exact, as arXiv 2210.12415, section 5, is for chains.
A reorder of a tensor with one channel or one pixel is a reshape and costs nothing. Constants are
permuted at compile time.

Bytes only approximate time. Labels that were measured to be faster may be given instead; see
`layout.search_space`.
"""

from __future__ import annotations

import logging

from tvm import ir, relax

from relay_passes.ir.axes import AxisView
from relay_passes.ir.decisions import LAYOUTS, Decision, DecisionLog
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import DataflowGraph, known_tensor, reshaped
from relay_passes.ir.quantization import is_transposable, transposed
from relay_passes.ir.rewrite import Bindings, block_pass
from relay_passes.ir.traits import is_convolution

from .assign_layouts import LayoutPlan
from .channel_layouts import Form, How, Operand, Role
from .minimum_cut import FIRST, LAST
from .search_space import ChooseLabels, LayoutProblem

logger = logging.getLogger("tvm_hybrid")


def propagate_layout(
    choose: ChooseLabels | None = None, decisions: DecisionLog | None = None, planes: bool = True
) -> ir.transform.Pass:
    """The pass; it needs A-normal form.

    Parameters
    ----------
    choose : callable or None
        Returns the labels of every block that has a choice. If it is None, or returns None, the
        block takes the cheapest cut.
    decisions : list or None
        Receives a note for every block whose labels come from `choose`.
    planes : bool
        Whether f32 convolutions of one tap may run channels first between tensors that are stored
        channels first; not if products are rounded to bfloat16, for tiles.
    """

    def rewrite(graph: DataflowGraph) -> list[relax.Binding] | None:
        """The block in its layouts; None if no operator changes."""
        plan = LayoutPlan(graph, planes)
        problem = None if choose is None else LayoutProblem(plan)
        if choose is not None and problem is not None and problem.operators:
            _follow(problem, choose, decisions)
        return _Writer(plan).block.bindings if plan.changes else None

    return block_pass("tvm_hybrid.propagate_layout", rewrite)


def _follow(problem: LayoutProblem, choose: ChooseLabels, decisions: DecisionLog | None) -> None:
    """Gives a block the labels that `choose` returns for it."""
    chosen = choose(problem)
    if chosen is None:
        return
    refusal = problem.refusal(chosen.labels)
    if refusal is not None:
        logger.warning("%s: these layouts are not used: %s", chosen.source, refusal)
        return
    problem.apply(chosen.labels)
    changed = problem.differences(chosen.labels)
    if decisions is not None:
        reason = f"{len(changed)} of {len(problem.operators)} operators run in another layout"
        if changed:
            reason += f" than the fewest bytes: {', '.join(changed)}"
        node = f"layouts {problem.key}"
        decisions.append(
            Decision(node=node, op=LAYOUTS, taken=False, source=chosen.source, reason=reason)
        )


class _Writer:
    """Writes the block as planned.

    Attributes
    ----------
    block : Bindings
        The written bindings.
    """

    def __init__(self, plan: LayoutPlan) -> None:
        self.plan = plan
        self.block = Bindings()
        self._stored: dict[tuple[relax.Expr, int], relax.Expr] = {}
        for position, binding in enumerate(plan.graph.bindings):
            role = plan.roles[position]
            if role is None or plan.as_imported(position):
                self._bind(binding.var, plan.graph.value(position))
            else:
                self._write(binding.var, role, plan.labels[position])

    def _write(self, var: relax.Var, role: Role, label: int) -> None:
        value = role.build(label, [self._operand(each, label) for each in role.operands])
        result = self.plan.forms.of(var)
        if is_convolution(value) and result is not None:  # TVM takes long to infer its type
            shape = reshaped(var, result.stored(label)).args[1]
            value = with_args(value, value.args, relax.TensorType(shape, result.dtype))
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
            form = self.plan.forms.labelled(expr)
            if form is None or label == form.imported:
                return expr
            if (expr, label) not in self._stored:  # each tensor is reordered once
                value = self._reordered(expr, form, form.imported, label)
                self._stored[expr, label] = self._emit(value, f"{expr.name}_{_NAMES[label]}")
            return self._stored[expr, label]
        if operand.how is How.PLAIN:
            return expr
        graph, order = self.plan.graph, operand.orders[label]
        if is_transposable(graph, expr):
            return transposed(graph, expr, order, operand.trims, self.block)
        number = not known_tensor(expr).shape  # a scalar known at run time
        return expr if number else transposed(graph, expr, order, False, self.block)

    def _reordered(self, expr: relax.Expr, form: Form, source: int, target: int) -> relax.Expr:
        view = AxisView(expr, form.stored(source), form.between(source, target))
        return view.emit(self.block)

    def _bind(self, var: relax.Var, value: relax.Expr) -> None:
        """Binds an expression to a variable of the original block."""
        self.block.bind(var, self._simple(value))

    def _emit(self, value: relax.Expr, name: str = "") -> relax.Expr:
        """Binds an expression to a new variable."""
        value = self._simple(value)
        return value if isinstance(value, relax.Var) else self.block.emit(value, name)

    def _simple(self, value: relax.Expr) -> relax.Expr:
        """An expression whose operands are all variables, constants or tuples."""
        if not isinstance(value, relax.Call):
            return value
        args = [self._emit(arg) if isinstance(arg, relax.Call) else arg for arg in value.args]
        return with_args(value, args, None if value.ty.is_missing() else value.ty)


_NAMES = {FIRST: "channels_first", LAST: "channels_last"}

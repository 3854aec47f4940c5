"""Rules: canonical forms of a dataflow graph, applied until none applies.

    @rule("relax.clip")
    def merge_clips(graph, block, call):        # what to bind instead of a clip; None to keep it
        ...

    rules("recognised", [merge_clips, recognize_gelu, ...])     # the pass of a group

A group works on one mutable graph of a block. A rule is tried only on bindings of its root
operators. The graph notes what a rule asks; the binding is tried again only if one of these answers
changes. So every rule sees the results of the others, in any order. Values that become unused
vanish at once. Relax is written when no rule applies any more.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax
from tvm_ffi import structural_equal, structural_hash

from .decisions import Decision, DecisionLog
from .functions import rebound, renamed
from .graph import AnyBinding, DataflowGraph, op_name, variables
from .rewrite import Bindings, block_pass

logger = logging.getLogger("tvm_hybrid")

RewriteValue = Callable[[Any, Bindings, Any], "relax.Expr | None"]

ITEM = "TupleGetItem"
"""The root of rules for tuple items."""

_MOST = 64
"""Most changes per binding of a block: rules that undo each other would never end."""


@dataclass(frozen=True)
class Rule:
    """A canonical form.

    Attributes
    ----------
    name : str
    roots : tuple of str
        The operators that the rule is tried on; empty for all bindings.
    rewrite : callable
        (graph, new bindings, value) -> what to bind instead; None to keep the value. The new
        bindings hold what the rule emits, in front of `block.var`, the root's variable. A rule that
        replaces a value computed from its root calls `block.at` with that value's variable. What
        the rule binds to other variables of the block replaces their bindings, too.
    """

    name: str
    roots: tuple[str, ...]
    rewrite: RewriteValue

    def __call__(self) -> ir.transform.Pass:
        """A pass that applies this rule alone."""
        return rules(self.name, [self])

    def tried(self, graph: DataflowGraph, block: Bindings, value: relax.Expr) -> relax.Expr | None:
        """What the rule would bind; the graph is not changed."""
        return self.rewrite(graph, block, value) if op_name(value) in self.roots else None


def rule(*roots: str) -> Callable[[RewriteValue], Rule]:
    """Makes a function a rule for some operators, or for all bindings."""

    def made(rewrite: RewriteValue) -> Rule:
        return Rule(rewrite.__name__, roots, rewrite)

    return made


def leave(decisions: DecisionLog | None, var: relax.Var, call: relax.Call, reason: str) -> None:
    """Notes the reason why a rule leaves an operator, once even if the rule is tried often."""
    op = op_name(call).rpartition(".")[2]
    decision = Decision(node=str(var.name), op=op, taken=False, reason=reason)
    if decisions is not None and decision not in decisions:
        decisions.append(decision)


def rules(name: str, group: Iterable[Rule]) -> ir.transform.Pass:
    """The pass that applies a group of rules to every dataflow block.

    Parameters
    ----------
    name : str
        Name of the group.
    group : iterable of Rule
        Tried in this order on each binding.
    """
    of_root: dict[str, list[Rule]] = {}
    known = list(group)

    def rules_for(value: relax.Expr) -> Sequence[Rule]:
        root = op_name(value) or type(value).__name__
        if root not in of_root:
            of_root[root] = [each for each in known if not each.roots or root in each.roots]
        return of_root[root]

    def applied(graph: DataflowGraph) -> list[relax.Binding] | None:
        tried = [place for place, each in enumerate(graph.bindings) if rules_for(each.value)]
        return RuleGraph(graph, tried).applied(rules_for) if tried else None

    return block_pass(f"tvm_hybrid.{name}", applied)


class RuleGraph(DataflowGraph):
    """A dataflow block that rules change.

    A position always means one binding, and says nothing about the order.

    Parameters
    ----------
    graph : DataflowGraph
        It is not changed.
    tried : list of int
        Positions of the bindings that some rule may apply to.
    """

    def __init__(self, graph: DataflowGraph, tried: list[int]) -> None:
        vars(self).update(vars(graph))
        self._count = len(self.bindings)
        self._gone: set[int] = set()
        self._before: defaultdict[int, list[int]] = defaultdict(list)  # emitted for a binding
        self._waiting = deque(reversed(tried))
        self._queued = set(self._waiting)
        self._asked: set[relax.Expr] = set()  # by the rules that are tried now
        self._watchers: defaultdict[relax.Expr, set[int]] = defaultdict(set)
        self._known: dict[relax.Expr, Any] = {}
        self._readers: Counter[relax.Expr] | None = None
        self._alike: defaultdict[int, list[relax.Expr]] = defaultdict(list)  # by hash

    def definition(self, expr: relax.Expr) -> relax.Expr | None:
        """As in `DataflowGraph`, and noted as asked."""
        self._asked.add(expr)
        return super().definition(expr)

    def users_of(self, var: relax.Expr) -> Sequence[int]:
        """As in `DataflowGraph`, and noted as asked."""
        self._asked.add(var)
        return super().users_of(var)

    def value(self, position: int) -> Any:
        """As in `DataflowGraph`, and noted as asked."""
        self._asked.add(self.bindings[position].var)
        return super().value(position)

    def known(self, expr: relax.Expr) -> Any:
        """What a rule noted about a value; None if none did."""
        self._asked.add(expr)
        return self._known.get(expr)

    def note(self, var: relax.Expr, fact: Any) -> None:
        """Notes a fact about a value for `known`; it must hold however the value is rewritten."""
        if var not in self._known:
            self._known[var] = fact
            self._changed(var)

    def first(self, expr: relax.Expr, value: relax.Expr) -> relax.Expr:
        """The first variable or constant seen here with an equal value; `expr` if there is none."""
        alike = self._alike[structural_hash(value, skip_tensor_content=True)]
        for other in alike:
            now = super().definition(other) if isinstance(other, relax.Var) else other
            if now is not None and structural_equal(now, value):
                return other
        alike.append(expr)
        return expr

    def readers(self, constant: relax.Expr) -> int:
        """How many operands of the block are this constant."""
        if self._readers is None:
            self._readers = Counter()
            for position, binding in enumerate(self.bindings):
                if position not in self._gone:
                    self._readers.update(_constants(binding.value))
        self._asked.add(constant)
        return self._readers[constant]

    def applied(
        self, rules_for: Callable[[relax.Expr], Sequence[Rule]]
    ) -> list[relax.Binding] | None:
        """The bindings once no rule applies any more; None if no rule ever applied."""
        left = most = _MOST * (self._count + 1)
        block = Bindings()
        while self._waiting and left:
            position = self._waiting.popleft()
            self._queued.remove(position)
            if position in self._gone:
                continue
            self._asked = set()
            var, before = self.bindings[position].var, self.bindings[position].value
            for each in rules_for(before):
                block.at(var)
                block.bindings = []
                value = each.rewrite(self, block, before)
                if value is not None:
                    if left == most:  # the graph of the block stays as it is
                        self.bindings, self.position = [*self.bindings], {**self.position}
                        self.users = {name: [*users] for name, users in self.users.items()}
                    left -= 1
                    self._wait(position)
                    self._replace(block, value)
                    break
            for asked in self._asked:
                self._watchers[asked].add(position)
        if self._waiting:
            logger.warning("rules undo each other and were stopped; the last was %s", each.name)
        return None if left == most else self._ordered()

    def _ordered(self) -> list[relax.Binding]:
        """The bindings, each after the bindings emitted for it and those it reads."""
        found: dict[int, AnyBinding] = {}
        stack = [*range(self._count)][::-1]
        while stack:
            position = stack.pop()
            first = self._before.pop(position, [])
            if position in found or (position in self._gone and not first):
                continue
            if position not in self._gone:
                read = (self.position.get(var) for var in variables(self.value(position)))
                first += [each for each in read if each is not None and each not in found]
            if first:
                stack += [position, *first[::-1]]
            else:
                found[position] = self.bindings[position]
        return [*found.values()]

    def _wait(self, position: int) -> None:
        if position not in self._queued:
            self._queued.add(position)
            self._waiting.append(position)

    def _changed(self, var: relax.Expr) -> None:
        """Queues the bindings whose rules asked about a value."""
        for position in self._watchers.pop(var, ()):
            self._wait(position)

    def _replace(self, block: Bindings, value: relax.Expr) -> None:
        """Binds a value, after the bindings emitted for it."""
        var = block.var
        place = self.position[var]
        for binding in block.bindings:
            assert isinstance(binding, relax.VarBinding)
            if binding.var in self.position:
                self._bind(self.position[binding.var], binding)
                continue
            position = len(self.bindings)
            self.bindings.append(binding)
            self.position[binding.var] = position
            self._before[place].append(position)
            self._link(position)
        value = block.builder.normalize(value)
        if isinstance(value, (relax.Var, ir.GenericConst)) and isinstance(var, relax.DataflowVar):
            self._rename(var, value)
        elif isinstance(value, relax.DataflowVar) and value in self.position:
            self._call_output(place, value)
        else:
            self._bind(place, relax.VarBinding(var, value))
        for binding in block.bindings:
            self._drop_unused(binding.var)

    def _rename(self, var: relax.Expr, value: relax.Expr) -> None:
        """Lets all readers of a variable read another value."""
        for user in [*self.users.get(var, ())]:
            binding = self.bindings[user]
            self._bind(user, rebound(binding, renamed(binding.value, {var: value})))
        self._drop_unused(var)

    def _call_output(self, place: int, value: relax.DataflowVar) -> None:
        """Renames a variable of the block to the output that is bound to it."""
        output, source = self.bindings[place].var, self.position.pop(value)
        before = variables(self.bindings[place].value)
        self._unlink(place)
        self.position[output] = source
        self.bindings[source] = relax.VarBinding(output, self.bindings[source].value)
        self._rename(value, output)
        self._changed(output)
        self._wait(source)
        for var in before:
            self._drop_unused(var)

    def _bind(self, place: int, binding: AnyBinding) -> None:
        """Replaces the binding at a place by another binding of its variable."""
        before = variables(self.bindings[place].value)
        self._unlink(place)
        self.bindings[place] = binding
        self._gone.discard(place)
        self._link(place)
        for var in before:
            self._drop_unused(var)

    def _link(self, position: int) -> None:
        """Registers a binding as a user of its operands."""
        binding = self.bindings[position]
        for var in variables(binding.value):
            self.users.setdefault(var, []).append(position)
            self._changed(var)
        self._count_constants(binding.value, 1)
        self._changed(binding.var)
        self._wait(position)

    def _unlink(self, position: int) -> None:
        """Removes a binding as a user of its operands."""
        value = self.bindings[position].value
        self._gone.add(position)
        for var in variables(value):
            self.users[var].remove(position)
            self._changed(var)
        self._count_constants(value, -1)

    def _count_constants(self, value: relax.Expr, more: int) -> None:
        if self._readers is not None:
            for constant in _constants(value):
                self._readers[constant] += more
                self._changed(constant)

    def _drop_unused(self, var: relax.Expr) -> None:
        """Removes a variable that nothing reads, and variables that become unused by that."""
        stack = [var]
        while stack:
            each = stack.pop()
            if not isinstance(each, relax.DataflowVar) or self.users.get(each):
                continue
            position = self.position.pop(each, None)
            if position is not None:
                self._unlink(position)
                stack += variables(self.bindings[position].value)


def _constants(value: relax.Expr) -> list[relax.Expr]:
    args = value.args[:] if isinstance(value, relax.Call) else ()
    return [arg for arg in args if isinstance(arg, ir.GenericConst)]

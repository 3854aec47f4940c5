"""Names the variables inside of what a node became after the node.

Before

    lv = R.less(indices, 0)
    lv1 = R.add(indices, 30522)
    lv2 = R.where(lv, lv1, indices)
    gather_n1_ = R.take(table, lv2)

After

    gather_n1_ = R.less(indices, 0)
    gather_n1_ = R.add(indices, 30522)
    gather_n1_ = R.where(gather_n1_, gather_n1_, indices)      # each a variable of its own
    gather_n1_ = R.take(table, gather_n1_)
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from relay_passes.ir.with_names import with_names

from ..explain.model_nodes import numbers_in

Made = tuple[str, relax.Expr]  # a name, and the last variable of what a node became


def name_variables(function: relax.Function, made: Sequence[Made]) -> relax.Function:
    """The function with other variables for those whose names tell no node.

    Parameters
    ----------
    function : relax.Function
    made : sequence of Made
        In the order in which nodes were converted.
    """
    bindings = [each for block in function.body.blocks for each in block.bindings[:]]
    place = {each.var: position for position, each in enumerate(bindings)}
    ends = [(place[var], name) for name, var in made if isinstance(var, relax.Var) and var in place]
    names: dict[relax.Var, str] = {}
    next_end = 0
    for position, binding in enumerate(bindings):
        while next_end < len(ends) and ends[next_end][0] < position:
            next_end += 1
        if next_end < len(ends) and not numbers_in([str(binding.var.name)]):
            names[binding.var] = ends[next_end][1]
    return with_names(function, names)

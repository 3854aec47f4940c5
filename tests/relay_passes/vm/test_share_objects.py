"""Each shape and size is made once, and one tensor for each place in memory."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import relax as R

from relay_passes.vm.memory import share_objects

HEAP = relax.Var("heap", relax.TensorType(dtype="int64", ndim=1))
STORAGE = relax.Var("storage", relax.AnyType())
RESULT = relax.TensorType(dtype="float32", ndim=2)


class Program:
    """Bindings of one function, one after another."""

    def __init__(self) -> None:
        self.bindings: list[relax.Binding] = []
        self.count = 0

    def bind(self, value: relax.Expr) -> relax.Var:
        self.count += 1
        var = relax.Var(f"v{self.count}", value.ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def shape(self, *numbers: int) -> relax.Var:
        kind = R.Shape(ndim=2)
        return self.bind(
            R.call_packed(
                "vm.builtin.make_shape", HEAP, *map(R.prim_value, numbers), ty_args=[kind]
            )
        )

    def size(self, place: int) -> relax.Var:
        """A size that is read from the heap of shapes."""
        numbers = map(R.prim_value, (1, place))
        kind = tvm.ir.PrimType("int64")
        return self.bind(
            R.call_packed("vm.builtin.make_prim_value", HEAP, *numbers, ty_args=[kind])
        )

    def tensor(self, shape: relax.Expr, storage: relax.Var = STORAGE) -> relax.Var:
        return self.bind(relax.op.vm.alloc_tensor(storage, 0, shape, "float32"))

    def use(self, *tensors: relax.Expr) -> relax.Var:
        return self.bind(R.call_packed("use", *tensors, ty_args=[R.Tuple]))

    def kill(self, var: relax.Var) -> None:
        self.bind(relax.op.vm.kill_object(var))

    def module(self, result: relax.Var) -> tvm.IRModule:
        body = relax.SeqExpr([relax.BindingBlock(self.bindings)], result)
        function = relax.Function([HEAP, STORAGE], body, RESULT, is_pure=False)
        return tvm.IRModule({"main": function})


def test_what_is_alike_is_made_once() -> None:
    before = Program()
    x = before.tensor(before.shape(2, 1, 0, 0, 384))
    before.use(x)
    before.kill(x)
    y = before.tensor(before.shape(2, 1, 0, 0, 384))
    before.use(y)
    before.kill(y)
    after = Program()
    x = after.tensor(after.shape(2, 1, 0, 0, 384))
    after.use(x)
    after.use(x)
    after.kill(x)
    mod = share_objects()(before.module(STORAGE))
    assert_structural_equal(mod, after.module(STORAGE))


def test_what_is_used_again_is_kept() -> None:
    before = Program()
    x = before.tensor(before.shape(2, 1, 0, 0, 384))
    before.kill(x)
    y = before.tensor(before.shape(2, 1, 0, 0, 384))
    after = Program()
    x = after.tensor(after.shape(2, 1, 0, 0, 384))
    assert_structural_equal(share_objects()(before.module(y)), after.module(x))


def test_sizes_are_read_once() -> None:
    before, after = Program(), Program()
    before.use(before.size(2), before.size(3), before.size(2))
    x, y = after.size(2), after.size(3)
    after.use(x, y, x)
    mod = share_objects()(before.module(STORAGE))
    assert_structural_equal(mod, after.module(STORAGE))


def test_nothing_is_shared_around_branches() -> None:
    """A branch may release a tensor made before it, which then cannot be used again."""

    def branch(tensor: relax.Var) -> relax.SeqExpr:
        inner = Program()
        inner.kill(tensor)
        return relax.SeqExpr([relax.BindingBlock(inner.bindings)], STORAGE)

    made = Program()
    first = made.tensor(relax.ShapeExpr([4, 4]))
    condition = made.bind(R.call_packed("ask", ty_args=[relax.TensorType([], "bool")]))
    choice = relax.If(condition, branch(first), branch(first))
    made.bindings.append(relax.VarBinding(relax.Var("chosen", STORAGE.ty), choice))
    made.use(made.tensor(relax.ShapeExpr([4, 4])))
    mod = made.module(STORAGE)
    assert_structural_equal(share_objects()(mod), mod)


def test_what_differs_stays() -> None:
    made = Program()
    first = made.tensor(made.shape(2, 1, 0, 0, 384))
    made.kill(first)
    other = made.tensor(made.shape(2, 1, 0, 0, 192))
    made.kill(other)
    known = made.tensor(relax.ShapeExpr([4, 4]))
    made.kill(known)
    result = made.tensor(
        relax.ShapeExpr([4, 4]),
        made.bind(relax.op.vm.alloc_storage(relax.ShapeExpr([64]), 0, "uint8")),
    )
    mod = made.module(result)
    assert_structural_equal(share_objects()(mod), mod)

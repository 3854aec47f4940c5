"""Changes to TVM's own classes, made once when the compiler is imported.

Threads may compile at the same time, Python reads TVM's objects in a part of the time, and kernels
of dynamic sizes are the same in every process. Each function says what it needs of TVM 0.27;
`tests/microkernels/base/tvm_compat/test_patches.py` shows what another version of TVM changes.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.te import tag


class _ThreadStack(threading.local):
    """A separate stack for each thread."""

    def __init__(self) -> None:
        self._items: list[relax.BlockBuilder] = []

    def append(self, item: relax.BlockBuilder) -> None:
        self._items.append(item)

    def pop(self) -> relax.BlockBuilder:
        return self._items.pop()

    def __getitem__(self, place: int) -> relax.BlockBuilder:
        return self._items[place]

    def __len__(self) -> int:
        return len(self._items)


def separate_builders() -> None:
    """Lets threads build Relax functions at the same time.

    TVM keeps the builders whose functions are being written in one list, and takes the last for the
    calling thread's. Its other stacks (targets, pass contexts, TIR builders) are the threads' own.

    Needs `relax.BlockBuilder._stack`, which is appended to, popped and read at -1, and is empty
    while nothing is built.
    """
    if isinstance(relax.BlockBuilder._stack, list) and not relax.BlockBuilder._stack:
        relax.BlockBuilder._stack = _ThreadStack()


class _ThreadTag(type):
    """A metaclass whose class has a separate `_current` for each thread."""

    _held = threading.local()

    @property
    def _current(cls) -> Any:
        return getattr(cls._held, "scope", None)

    @_current.setter
    def _current(cls, scope: Any) -> None:
        cls._held.scope = scope


def separate_tags() -> None:
    """Lets threads call tagged functions of topi at the same time.

    TVM keeps the tag of the running function in one place, and refuses a second one.

    Needs that the tag is `_current` of the class `TagScope` of its module, where all scopes look,
    and that it is None while no tagged function runs.
    """
    if type(tag.TagScope) is type and tag.TagScope._current is None:
        tag.TagScope = _ThreadTag("TagScope", (tag.TagScope,), {})  # type: ignore[assignment,misc]


_ALL = slice(None)


def quick_arrays() -> None:
    """Lets Python read arrays of TVM in a third of the time.

    TVM asks for the size and checks the index of each element, in Python. Compiling reads hundreds
    of thousands: arguments, bindings, shapes.

    Needs the global functions `ffi.ArraySize` and `ffi.ArrayGetItem`, which refuses an index past
    the end, and that no array changes.
    """
    array: Any = tvm_ffi.Array
    size = tvm_ffi.get_global_func("ffi.ArraySize")
    item = tvm_ffi.get_global_func("ffi.ArrayGetItem")
    whole = array.__getitem__
    if whole.__module__ == __name__:
        return

    def getitem(self: Any, index: Any) -> Any:
        if type(index) is int and index >= 0:
            try:
                return item(self, index)
            except IndexError:
                return whole(self, index)
        return list(elements(self)) if index == _ALL else whole(self, index)

    def elements(self: Any) -> Iterator[Any]:
        return map(item, repeat(self), range(size(self)))

    array.__getitem__, array.__iter__ = getitem, elements


def quick_objects() -> None:
    """Lets Python ask for the class of an object of TVM, and compare expressions, in a third of the
    time, walk expressions in half of it, and read small tensors in a tenth.

    TVM's classes have a metaclass that looks for registered subclasses; there are none. Comparing
    expressions by identity checks first whether they are numbers, every walk looks up its classes
    again, and tensors go through their types and pointers in Python.

    Needs the metaclass of `tvm_ffi.Object`, `ExprOperand.__eq__`, which builds a comparison of
    numbers only, `tvm_ffi.structural._callback_type_to_type_index`, `ir._ffi_api.Call`, which
    `Call` calls with all of its fields after it has imported modules, and that a tensor is known to
    NumPy by DLPack.
    """
    kind: Any = type(tvm_ffi.Object)
    if "__instancecheck__" in vars(kind):
        return
    kind.__instancecheck__ = type.__instancecheck__
    operand: Any = ir.expr.ExprOperand
    compared, same = operand.__eq__, tvm_ffi.Object.__eq__

    def equal(self: Any, other: Any) -> Any:
        return compared(self, other) if type(self.ty) is ir.PrimType else same(self, other)

    operand.__eq__ = equal
    call: Any = ir.Call
    whole, make, missing = call.__init__, vars(ir)["_ffi_api"].Call, ir.Type.missing()
    named = functools.cache(ir.PrimType)

    def init(
        self: Any, op: Any, args: Any, attrs: Any = None, ty_args: Any = None,
        span: Any = None, ret_ty: Any = None,
    ) -> None:  # fmt: skip
        is_named = isinstance(ret_ty, str)
        if isinstance(op, str) or isinstance(attrs, dict) or (is_named and ret_ty == "handle"):
            whole(self, op, args, attrs, ty_args, span, ret_ty)
        else:
            ty = missing if ret_ty is None else named(ret_ty) if is_named else ret_ty
            types = [] if ty_args is None else ty_args
            self.__init_handle_by_constructor__(make, ty, op, args, attrs, types, span)

    call.__init__ = init
    tensor: Any = tvm.runtime.Tensor
    slowly = tensor.numpy

    def numpy(self: Any) -> np.ndarray[Any, Any]:
        try:
            return np.array(np.from_dlpack(self), order="C")
        except (BufferError, RuntimeError):  # a type that NumPy lacks, or another device
            return slowly(self)

    tensor.numpy = numpy
    structural: Any = tvm_ffi.structural
    structural._callback_type_to_type_index = functools.cache(
        structural._callback_type_to_type_index
    )


class _InOrder(dict[Any, None]):
    """A set that keeps its elements in the order in which they were added."""

    def add(self, element: Any) -> None:
        self[element] = None

    def update(self, elements: Iterable[Any]) -> None:  # type: ignore[override]
        for element in elements:
            self[element] = None

    def __sub__(self, others: Any) -> _InOrder:
        left = _InOrder()
        left.update(element for element in self if element not in others)
        return left


def order_symbols() -> None:
    """Lets equal operators become one kernel of dynamic sizes.

    A kernel takes sizes that are no dimension of a shape as arguments. TVM keeps them in a set, in
    the order of their addresses: (height, width) for one call, (width, height) for the next, so
    that kernels differ within a process and between processes.

    Needs that `relax.utils` calls nothing else `set`, and only adds elements, and subtracts sets.
    """
    vars(relax.utils)["set"] = _InOrder

from collections.abc import Mapping, Sequence
from typing import Any

from tvm_ffi import Object

from .mutator import Mutator
from .postproc import Postproc

class SpaceGenerator(Object): ...

class PostOrderApply(SpaceGenerator):
    def __init__(
        self,
        f_block_filter: Any = None,
        sch_rules: Sequence[Any] | str = "from-target",
        postprocs: Sequence[Postproc] | str = "from-target",
        mutator_probs: Mapping[Mutator, float] | str = "from-target",
    ) -> None: ...

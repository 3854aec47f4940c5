"""PipelineOptions: the parameters of the passes, and those among them that users choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm.target import Target

from microkernels.base.errors import CompileError
from microkernels.base.old_names import old_arguments, old_property
from microkernels.machines.machine import Machine

if TYPE_CHECKING:  # sessions read the options without loading the compiler
    from tir_schedules.tensorize.arrangement import ChooseArrangement

    from .layout.search_space import ChooseLabels
    from .lower.codegen import KernelStore
    from .lower.lower_regions import Lookup

PRECISIONS = ("auto", "f32", "bf16")
FUSION_LEVELS = ("coarse", "fine", "none")
FAST_MATH_LEVELS = ("off", "default", "on")


@dataclass(frozen=True, kw_only=True)
class CodeOptions:
    """Code options that users choose for any target; `tvm_hybrid.CompileOptions` explains them.

    Attributes
    ----------
    precision : str
        One of PRECISIONS: the type in which products are computed.
    fusion : str
        One of FUSION_LEVELS: which operators may become one kernel.
    fast_math : str
        One of FAST_MATH_LEVELS: which results may be rounded differently, for speed.

    Raises
    ------
    CompileError
        If there is no such precision or level.
    """

    precision: str = "auto"
    fusion: str = "coarse"
    fast_math: str = "default"

    def __post_init__(self) -> None:
        check_option("precision", self.precision, PRECISIONS)
        check_option("fusion", self.fusion, FUSION_LEVELS, "fusion level")
        check_option("fast_math", self.fast_math, FAST_MATH_LEVELS, "fast_math level")

    def code(self) -> dict[str, Any]:
        """These options by name, for other classes with these options."""
        return {"precision": self.precision, "fusion": self.fusion, "fast_math": self.fast_math}


@old_arguments(open_weights="dynamic_weights")
@dataclass(frozen=True)
class PipelineOptions(CodeOptions):
    """The parameters of the passes; `precision`, `fusion` and `fast_math` are keywords.

    Attributes
    ----------
    target : tvm.target.Target
        An llvm target.
    threads : int
        Threads that one parallel region may use; 1 builds serial kernels.
    lookup : callable or None
        (region, machine) -> (config, its origin), or None if no record fits.
    strict : bool
        Whether a matmul, convolution or normalisation that no template takes is an error.
    dump_ir : Path or None
        Folder that receives the IR after every pass.
    suffix : str
        Suffix of the names of all kernels.
    layouts : callable or None
        A block's layout problem -> the labels of its operators, or None to use the labels with the
        fewest moved bytes.
    arrange : callable or None
        A contraction from a TIR function or an einsum -> its arrangement, or None to use the
        estimate.
    dynamic_weights : bool
        Whether parameters after the first `num_input` of a function are weights, known before a
        run. Operators on them alone then pack the weights of products, as they always do for
        convolutions, and convolutions with these weights may use Winograd's algorithm.
    entry_checks : bool
        Whether functions check their inputs as those of TVM's own pipeline do, with TVM's errors,
        even if kernels refuse the same arguments.
    kernels : KernelStore or None
        Where compiled machine code of kernels is looked up and stored.
    """

    target: Target
    threads: int = 1
    lookup: Lookup | None = None
    strict: bool = False
    dump_ir: Path | None = None
    suffix: str = ""
    layouts: ChooseLabels | None = None
    arrange: ChooseArrangement | None = None
    dynamic_weights: bool = False
    entry_checks: bool = False
    kernels: KernelStore | None = None

    open_weights = old_property("open_weights", "dynamic_weights")

    @property
    def machine(self) -> Machine:
        """The machine that kernels are built for."""
        return Machine.from_target(self.target, self.threads)


def check_option(argument: str, value: object, known: Sequence[str], what: str = "") -> None:
    """Refuses an unknown value of an option.

    `what` is the option's name in the message; by default the name of its argument.

    Raises
    ------
    CompileError
        With the known values.
    """
    if value not in known:
        names = ", ".join(map(repr, known))
        quantised = argument == "precision" and "8" in str(value)
        advice = "; `tvm-hybrid quantize` makes models of 8-bit integers" if quantised else ""
        raise CompileError(
            f"unknown {what or argument} {value!r}; the known ones are {names}{advice}",
            argument=argument,
        )

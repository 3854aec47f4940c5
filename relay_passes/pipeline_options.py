"""PipelineOptions: what the passes need to know, and the words that its options may be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tvm.target import Target

from microkernels.machines.machine import Machine
from tir_schedules.tensorize.arrangement_problem import ChooseArrangement

from .check_option import check_option
from .layout.search_space import ChooseLabels
from .lower.kernel_text import KernelStore
from .lower.select_configs import Lookup

PRECISIONS = ("auto", "f32", "bf16")
FUSION_LEVELS = ("coarse", "fine", "none")


@dataclass(frozen=True)
class PipelineOptions:
    """What the passes need to know.

    Attributes
    ----------
    target : tvm.target.Target
        An llvm target.
    threads : int
        Threads that one parallel region may use; 1 builds serial kernels.
    lookup : callable or None
        (region, machine) -> (config, where it comes from), or None where no record fits.
    strict : bool
        Whether a matmul, convolution or normalisation that no template takes is an error.
    dump_ir : Path or None
        Folder that receives the IR after every pass.
    precision : str
        One of PRECISIONS: in which type products are computed. "auto": as the model says.
    fusion : str
        One of FUSION_LEVELS. "coarse": everything; "fine": an anchor with the elementwise operators
        around it, but no regions merged; "none": every anchor alone.
    suffix : str
        What the names of all kernels end with.
    fast_math : str
        One of `select_winograd.FAST_MATH_LEVELS`: which results may round otherwise, to be faster.
    layouts : callable or None
        A block's layout problem -> the labels of its operators, or None where there are none that
        are better than those that move the fewest bytes.
    arrange : callable or None
        A contraction of a program without operators -> how it is arranged, or None where there is
        nothing better than the estimate.
    open_weights : bool
        Whether parameters behind the first `num_input` of a function are weights that are known
        before a run: those of products are packed by operators on them alone, as weights of
        convolutions always are, and convolutions by them may use Winograd's algorithm.
    entry_checks : bool
        Whether functions check their inputs as those of TVM's own pipeline do, with its errors,
        even where kernels refuse the same arguments.
    kernels : KernelStore or None
        Where machine code of kernels is looked for, and kept.
    """

    target: Target
    threads: int = 1
    lookup: Lookup | None = None
    strict: bool = False
    dump_ir: Path | None = None
    precision: str = "auto"
    fusion: str = "coarse"
    suffix: str = ""
    fast_math: str = "default"
    layouts: ChooseLabels | None = None
    arrange: ChooseArrangement | None = None
    open_weights: bool = False
    entry_checks: bool = False
    kernels: KernelStore | None = None

    @property
    def machine(self) -> Machine:
        """The machine that kernels are built for."""
        return Machine.from_target(self.target, self.threads)


def check_precision(precision: str) -> None:
    """Refuses, by CompileError, what is not in PRECISIONS."""
    check_option("precision", precision, PRECISIONS)


def check_fusion(fusion: str) -> None:
    """Refuses, by CompileError, what is not in FUSION_LEVELS."""
    check_option("fusion level", fusion, FUSION_LEVELS)

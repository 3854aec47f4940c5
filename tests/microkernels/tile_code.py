"""Reads the tile instructions of compiled functions and compares them with `amx.instructions`.

Between two jumps, code has only whole pieces of blocks: the start of one (its accumulators zeroed
or loaded), steps of K, or its end. Pieces are matched with the tile registers of the layout, so a
spilled, renamed or reloaded tile is no piece of any block.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from microkernels.amx.instructions import TileBlock, TileInstruction
from microkernels.amx.tile_shapes import LAYOUTS
from microkernels.kernels.amx_tiles import AmxMicrokernel

_CONFIGURATION = re.compile(r"tvm_hybrid_amx_configure_(\dx\d)_(\d+)x(\d+)_data\(%rip\)")


class Tiles(NamedTuple):
    """One tile instruction of the code: mnemonic, the tile written, the tiles read."""

    name: str
    target: int | None = None
    sources: tuple[int, ...] = ()


@dataclass
class Line:
    """An instruction of the assembly."""

    mnemonic: str
    operands: str

    @property
    def on_tiles(self) -> bool:
        return self.mnemonic.startswith(("tile", "tdp", "ldtilecfg", "sttilecfg"))

    def tiles(self) -> Tiles:
        """The instruction in the form of `amx.instructions`; operands come in AT&T order.

        `tileloaddt1` is `tileloadd` with a hint.
        """
        numbers = [int(number) for number in re.findall(r"%tmm(\d)", self.operands)]
        if self.mnemonic.startswith("tdp"):
            b, a, c = numbers
            return Tiles(self.mnemonic, c, (c, a, b))
        if self.mnemonic == "tilestored":
            return Tiles(self.mnemonic, None, tuple(numbers))
        return Tiles(self.mnemonic.removesuffix("t1"), numbers[0] if numbers else None)


@dataclass
class BasicBlock:
    """Instructions without a jump in between, and the labels of the blocks that may follow."""

    lines: list[Line] = field(default_factory=list)
    successors: list[str] = field(default_factory=list)
    returns: bool = False


@dataclass
class Function:
    """The basic blocks of a compiled function by label; the first one is its entry."""

    name: str
    blocks: dict[str, BasicBlock]

    @property
    def tile_lines(self) -> list[Line]:
        lines = itertools.chain.from_iterable(block.lines for block in self.blocks.values())
        return [line for line in lines if line.on_tiles]

    def on_stack(self, line: Line) -> bool:
        """Whether an operand lies on the stack; %rbp is the frame pointer or a plain register."""
        lines = itertools.chain.from_iterable(block.lines for block in self.blocks.values())
        frame = any(each.operands == "%rsp, %rbp" for each in lines)
        return bool(re.search("%r[sb]p" if frame else "%rsp", line.operands))


def functions_with_tiles(assembly: str) -> list[Function]:
    """Every function of a module with tile instructions."""
    found = []
    for text in re.split(r"^\.Lfunc_end\d+:", assembly, flags=re.MULTILINE)[:-1]:
        begin = list(re.finditer(r"^\t\.type\t([\w.$]+),@function\n", text, re.MULTILINE))[-1]
        found.append(_function(begin[1], text[begin.end() :]))
    return [function for function in found if function.tile_lines]


def _function(name: str, body: str) -> Function:
    blocks = {"": BasicBlock()}
    current: BasicBlock | None = blocks[""]
    for text in body.splitlines():
        label = re.match(r"(\.LBB\w+):", text)
        if label:
            if current is not None:
                current.successors.append(label[1])
            current = blocks.setdefault(label[1], BasicBlock())
        instruction = re.match(r"\t([a-z]\w*)\s*(.*?)(\s+#.*)?$", text)
        if not instruction or current is None:
            continue
        line = Line(instruction[1], instruction[2])
        current.lines.append(line)
        leaves = line.mnemonic.startswith("jmp") and not line.operands.startswith(".LBB")
        if leaves or line.mnemonic.startswith("ret"):  # a tail call may be a jump
            current.returns, current = True, None
        elif line.mnemonic.startswith("j"):
            current.successors.append(line.operands)
            if line.mnemonic.startswith("jmp"):
                current = None
            else:  # the code after a conditional jump is its own block
                after = f"{line.operands} not taken {len(blocks)}"
                current.successors.append(after)
                current = blocks.setdefault(after, BasicBlock())
    return Function(name, blocks)


def expected(instructions: Iterable[TileInstruction], product: str) -> list[Tiles]:
    """Instructions of the model with the mnemonics of the code."""
    return [
        Tiles(product if i.name == "tdp" else i.name, i.target, i.sources) for i in instructions
    ]


def assert_whole_pieces(function: Function, kernels: Iterable[AmxMicrokernel]) -> None:
    """Between jumps, code has only starts, steps and ends of blocks, in the layouts' registers."""
    letters: dict[Tiles, str] = {}

    def word(instructions: Sequence[Tiles]) -> str:
        return "".join(letters.setdefault(i, chr(0x4E00 + len(letters))) for i in instructions)

    pieces = {word([Tiles("ldtilecfg")]), word([Tiles("tilerelease")])}
    for kernel, resume in itertools.product(kernels, (False, True)):
        rows, columns = LAYOUTS[kernel.layout]
        for r, c in itertools.product(range(1, rows + 1), range(1, columns + 1)):
            model = TileBlock(kernel.layout, r, c, 1, resume)
            stream, tiles = expected(model.stream(), kernel.product), r * c
            parts = stream[:tiles], stream[tiles:-tiles], stream[-tiles:]
            pieces.update(map(word, parts))
    # Longest first: a smaller block's step may be a prefix of a larger one's.
    alternatives = "|".join(sorted(pieces, key=len, reverse=True))
    grammar = re.compile(f"(?:{alternatives})*+")
    for label, block in function.blocks.items():
        found = [line.tiles() for line in block.lines if line.on_tiles]
        strange = [i for i in found if i not in letters]
        assert not strange, f"{function.name}: {strange} in {label}"
        matched = grammar.match(word(found))
        whole = matched.end() if matched else 0
        assert whole == len(found), f"{function.name}: no piece of a block, {found[whole:][:9]}"


def assert_configured(
    function: Function, kernels: Iterable[AmxMicrokernel]
) -> set[tuple[int, int]]:
    """On every path, tiles are used between a configuration of ours and a release.

    Returns
    -------
    set
        Rows and columns of the configurations that are loaded.
    """
    layouts = {kernel.layout for kernel in kernels}
    loaded = set()
    entry = next(iter(function.blocks))
    waiting: list[tuple[str, bool]] = [(entry, False)]
    seen = set(waiting)
    while waiting:
        label, configured = waiting.pop()
        block = function.blocks[label]
        for line in block.lines:
            if line.mnemonic == "ldtilecfg":
                ours = _CONFIGURATION.fullmatch(line.operands)
                assert ours and ours[1] in layouts, f"{function.name}: ldtilecfg {line.operands}"
                loaded.add((int(ours[2]), int(ours[3])))
                configured = True
            elif line.on_tiles:
                assert configured, f"{function.name}: {line.mnemonic} without configuration"
                assert not function.on_stack(line), f"{function.name}: {line} is spilled"
                configured = line.mnemonic != "tilerelease"
        assert not (block.returns and configured), f"{function.name} returns configured at {label}"
        for successor in block.successors:
            if (successor, configured) not in seen:
                seen.add((successor, configured))
                waiting.append((successor, configured))
    return loaded

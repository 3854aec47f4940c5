"""Random programs of the integer instructions that the emulator executes within a trap.

Register rdi points to the registers' initial values, rsi to memory; programs change none of rdi,
rsi and rsp. A program tracks which flags the manual defines, and its conditions read no others.
"""

from __future__ import annotations

import random

REGISTERS = [
    "rax",
    "rcx",
    "rdx",
    "rbx",
    "rbp",
    "r8",
    "r9",
    "r10",
    "r11",
    "r12",
    "r13",
    "r14",
    "r15",
]
_NARROW = ["eax", "ecx", "edx", "ebx", "ebp", *(f"{name}d" for name in REGISTERS[5:])]
MEMORY_BYTES = 512
_COUNTERS = 8 * 4  # bytes at the end of the memory for loop counters
_CONSTANTS = (0, 1, -1, 7, 64, 127, -128, 128, 4096, -4097, 2**31 - 1, -(2**31))
CARRY, PARITY, AUXILIARY, ZERO, SIGN, OVERFLOW = 0x1, 0x4, 0x10, 0x40, 0x80, 0x800
FLAGS = CARRY | PARITY | AUXILIARY | ZERO | SIGN | OVERFLOW
# Flags that each condition reads; its negation, with an n in its name, reads them too.
_CONDITIONS = {
    "o no": OVERFLOW,
    "b ae": CARRY,
    "e ne": ZERO,
    "be a": CARRY | ZERO,
    "s ns": SIGN,
    "p np": PARITY,
    "l ge": SIGN | OVERFLOW,
    "le g": SIGN | OVERFLOW | ZERO,
}


class GlueProgram:
    """Lines of assembly; `@` in labels is replaced by a unique suffix.

    Attributes
    ----------
    lines : list of str
        The program. At a line `tilerelease` an AMX instruction may be inserted.
    defined : int
        Flags with a defined value at the program's end.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._labels = 0
        self._loops = 0
        self.lines: list[str] = []
        self.defined = FLAGS

    def grow(self, foreign: bool = False) -> GlueProgram:
        """Adds simple steps, jumps and loops, with `foreign` also steps for the CPU alone."""
        steps = [self._simple] * 6 + [self._jump, self._loop]
        if foreign:
            steps += [self._foreign] * 4
        for _ in range(self._rng.randrange(3, 14)):
            self._rng.choice(steps)()
        return self

    def text(self, name: str, with_amx: bool) -> str:
        """The program as text for the assembler."""
        kept = [line for line in self.lines if with_amx or line != "tilerelease"]
        return "\n".join(kept).replace("@", name)

    # Operands.

    def _wide(self) -> bool:
        return self._rng.random() < 0.6

    def _register(self, wide: bool = True) -> str:
        return "%" + self._rng.choice(REGISTERS if wide else _NARROW)

    def _memory(self) -> str:
        return f"{8 * self._rng.randrange((MEMORY_BYTES - _COUNTERS) // 8)}(%rsi)"

    def _constant(self) -> str:
        return f"${self._rng.choice(_CONSTANTS)}"

    def _readable(self, wide: bool) -> str:
        return self._rng.choice([self._register(wide), self._memory(), "data@(%rip)"])

    # Steps.

    def _add(self, line: str, undefined: int = 0) -> None:
        """Adds a line that sets all flags, some of them to undefined values."""
        self.lines.append(line)
        self.defined = FLAGS & ~undefined

    def _simple(self) -> None:
        choices = (
            self._arithmetic,
            self._unary,
            self._shift,
            self._product,
            self._move,
            self._cmov,
        )
        self._rng.choice(choices)()

    def _arithmetic(self) -> None:
        wide = self._wide()
        name = self._rng.choice(["add", "sub", "and", "or", "xor", "cmp", "test"])
        logic = AUXILIARY if name in ("and", "or", "xor", "test") else 0
        forms = [
            f"{self._register(wide)}, {self._memory()}",
            f"{self._constant()}, {self._memory()}",
            f"{self._constant()}, {self._register(wide)}",
            f"{self._constant()}, {'%rax' if wide else '%eax'}",
            f"{self._register(wide)}, {self._register(wide)}",
        ]
        if name in ("cmp", "test"):
            forms.append(f"{self._constant()}, data@(%rip)")
        if name != "test":
            forms.append(f"{self._readable(wide)}, {self._register(wide)}")
        self._add(f"{name}{'q' if wide else 'l'} {self._rng.choice(forms)}", logic)

    def _unary(self) -> None:
        before, wide = self.defined, self._wide()
        name = self._rng.choice(["inc", "dec", "neg", "not"])
        target = self._rng.choice([self._register(wide), self._memory()])
        self._add(f"{name}{'q' if wide else 'l'} {target}")
        if name == "not":
            self.defined = before
        elif name != "neg":  # inc and dec keep the carry
            self.defined = FLAGS & (before | ~CARRY)

    def _shift(self) -> None:
        before, wide = self.defined, self._wide()
        bits = 64 if wide else 32
        count = self._rng.choice([0, 1, 1, 2, bits - 1, self._rng.randrange(bits)])
        name = self._rng.choice(["shl", "shr", "sar"]) + ("q" if wide else "l")
        amount = "" if count == 1 and self._wide() else f"${count}, "
        target = self._rng.choice([self._register(wide), self._memory()])
        self._add(f"{name} {amount}{target}", AUXILIARY | (OVERFLOW if count > 1 else 0))
        if not count:
            self.defined = before

    def _product(self) -> None:
        wide = self._wide()
        factor = self._rng.choice(["", f"{self._constant()}, ", f"${self._rng.randrange(99)}, "])
        operands = f"{factor}{self._readable(wide)}, {self._register(wide)}"
        undefined = AUXILIARY | ZERO | SIGN | PARITY
        self._add(f"imul{'q' if wide else 'l'} {operands}", undefined)

    def _move(self) -> None:
        rng, wide = self._rng, self._wide()
        suffix, target = "q" if wide else "l", self._register(wide)
        constant = rng.choice(_CONSTANTS)
        index = f"{self._register()},{rng.choice([1, 2, 4, 8])}"
        choices = [
            f"mov{suffix} {self._readable(wide)}, {target}",
            f"mov{suffix} {target}, {self._memory()}",
            f"mov{suffix} ${constant}, {target}",
            f"mov{suffix} ${constant}, {self._memory()}",
            f"movabsq ${rng.getrandbits(64)}, {self._register()}",
            f"movslq {self._readable(False)}, {self._register()}",
            f"lea{suffix} {constant}({self._register()},{index}), {target}",
            f"lea{suffix} {constant}(,{index}), {target}",
            f"lea{suffix} {constant}({self._register()}), {target}",
            "prefetcht0 64(%rsi)",
            "prefetchw (%rsi)",
            "nopw 0(%rax,%rax,1)",
            f".nops {rng.randrange(1, 16)}",
        ]
        self.lines.append(rng.choice(choices))

    def _condition(self) -> str:
        """A condition that reads only defined flags; sets the flags first if none is defined."""
        if not self.defined & ~AUXILIARY:
            self._add("testq %rax, %rax", AUXILIARY)
        names = [pair for pair, flags in _CONDITIONS.items() if not flags & ~self.defined]
        return self._rng.choice(self._rng.choice(names).split())

    def _cmov(self) -> None:
        wide = self._wide()
        operands = f"{self._readable(wide)}, {self._register(wide)}"
        self.lines.append(f"cmov{self._condition()}{'q' if wide else 'l'} {operands}")

    def _label(self) -> str:
        self._labels += 1
        return f".L@_{self._labels}"

    def _jump(self) -> None:
        label, before = self._label(), self.defined
        self.lines.append(f"{self._rng.choice(['jmp', 'j' + self._condition()])} {label}")
        if self._rng.random() < 0.3:
            self.lines.append(".nops 140")  # too far for a jump of two bytes
        for _ in range(self._rng.randrange(3)):
            self._simple()
        self.lines.append(f"{label}:")
        self.defined &= before

    def _loop(self) -> None:
        if self._loops == _COUNTERS // 8:
            return
        counter = f"{MEMORY_BYTES - 8 * (self._loops + 1)}(%rsi)"
        self._loops += 1
        label = self._label()
        self.lines += [f"movq ${self._rng.randrange(1, 4)}, {counter}", f"{label}:"]
        self.defined &= ~CARRY  # it may be undefined at the end of an iteration
        for _ in range(self._rng.randrange(1, 5)):
            self._simple()
        before = self.defined
        self.lines += ["tilerelease", f"decq {counter}", f"jne {label}"]
        self.defined = FLAGS & (before | ~CARRY)

    def _foreign(self) -> None:
        """Instructions that the emulator does not know, some of them similar to known ones."""
        choices = [
            f"bswapq {self._register()}",
            f"xchgq {self._register()}, {self._register()}",
            "xchgq %rax, %r8",
            f"movzbl 3(%rsi), {self._register(False)}",
            "movb $3, 5(%rsi)",
            "movw $-3, 6(%rsi)",
            f"andnq {self._register()}, {self._register()}, {self._register()}",
            "pushq %rax\npopq %rcx",
            "vpxor %xmm1, %xmm1, %xmm1\nvmovq %xmm1, %r9",
            f"shlxq {self._register()}, {self._register()}, {self._register()}",
        ]
        line = self._rng.choice(choices)
        self.lines.append(line)
        if line.startswith("andn"):
            self.defined = FLAGS & ~(AUXILIARY | PARITY)
        for name in ("addw", "addb", "popcntq"):
            if self._rng.random() < 0.3:
                target = self._register() if name == "popcntq" else "16(%rsi)"
                self._add(f"{name} {self._memory() if name == 'popcntq' else '$100'}, {target}")
        if self.defined & CARRY:
            self._add(f"adcq {self._register()}, {self._register()}")

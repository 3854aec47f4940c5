"""Random attentions combine all properties at once."""

from __future__ import annotations

from typing import Any

from hypothesis import Phase, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.tir_schedules.attention_checks import ISAS_OF, check
from tests.tir_schedules.attention_regions import INFINITE, case, of_kind, values

LAYOUT = st.sampled_from(["bshd", "bhsd", "bhds", "packed"])
LENGTH = st.one_of(st.integers(1, 20), st.integers(1, 150), st.sampled_from([16, 48, 64, 128]))
HEAD = st.one_of(st.sampled_from([16, 32, 48, 64]), st.integers(1, 70))


@st.composite
def attentions(draw: st.DrawFn) -> Any:
    """(attention, instruction set, threads)."""
    kind = draw(st.sampled_from(["f32", "f32", "bf16", "rounded", "int8"]))
    group, m, n = draw(st.sampled_from([1, 1, 2, 3])), draw(LENGTH), draw(LENGTH)
    types = tuple(draw(st.sampled_from(["uint8", "int8"])) for _ in range(4))
    fields: dict[str, Any] = {
        "batch": draw(st.integers(1, 2)),
        "heads": group * draw(st.integers(1, 2)),
        "group": group,
        "m": m,
        "n": n,
        "d": draw(HEAD),
        "e": draw(st.one_of(st.just(0), HEAD)),
        "layouts": (*(draw(LAYOUT) for _ in range(3)), draw(st.sampled_from(["bshd", "bhsd"]))),
        "mask": draw(st.sampled_from(["", "keys", "rows", "square", "heads", "where"])),
        "causal": draw(st.one_of(st.none(), st.integers(0, n))),
        "divided": draw(st.booleans()),
        "absent": draw(st.sampled_from([INFINITE, -1e4, -3e38] if kind != "int8" else [-1e4])),
        "types": types,
        "zeros": tuple(draw(st.integers(*((0, 255), (-128, 127))[x == "int8"])) for x in types),
        "residual": draw(st.booleans()),
        "score_scale": draw(st.sampled_from([0.0, 0.0, 0.1])) if kind == "int8" else 0.0,
    }
    isa = draw(st.sampled_from(ISAS_OF[kind][-2:]))
    return of_kind(case(**fields), kind), isa, draw(st.integers(1, 2))


@given(attentions(), st.booleans(), st.integers(0, 99))
@examples(25, derandomize=True, phases=(Phase.explicit, Phase.reuse, Phase.generate))
def test_any_attention(drawn: Any, at_end: bool, seed: int) -> None:
    """A failing example is not shrunk: each try costs a compilation."""
    attention, isa, threads = drawn
    check(attention, isa, values(attention, seed), at_end=at_end, threads=threads)

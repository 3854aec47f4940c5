"""Walking and rebuilding TIR statements; TVM 0.27 has no statement functor for Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tvm import s_tir, tirx


def children(statement: tirx.Stmt) -> list[tirx.Stmt]:
    """The statements directly inside one, in program order; an `init` of a block is not listed."""
    if isinstance(statement, tirx.SeqStmt):
        return list(statement.seq)
    if isinstance(statement, s_tir.SBlockRealize):
        return [statement.block]
    if isinstance(statement, s_tir.SBlock | tirx.For | tirx.While | tirx.AttrStmt):
        return [statement.body]
    if isinstance(statement, tirx.IfThenElse):
        cases = [statement.then_case, statement.else_case]
        return [case for case in cases if case is not None]
    return []


def with_children(statement: tirx.Stmt, inside: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """The statement with others in the place of its `children`."""
    if not inside:
        return statement
    if isinstance(statement, tirx.SeqStmt):
        return tirx.SeqStmt(list(inside))
    if isinstance(statement, tirx.IfThenElse):
        then, *rest = inside
        return tirx.IfThenElse(statement.condition, then, rest[0] if rest else None)
    (body,) = inside
    if isinstance(statement, s_tir.SBlockRealize):
        assert isinstance(body, s_tir.SBlock)
        return s_tir.SBlockRealize(statement.iter_values, statement.predicate, body)
    if isinstance(statement, s_tir.SBlock):
        return with_body(statement, body, dict(statement.annotations))
    if isinstance(statement, tirx.For):
        return tirx.For(
            statement.loop_var,
            statement.min,
            statement.extent,
            statement.kind,
            body,
            statement.thread_binding,
            statement.annotations,
            statement.step,
        )
    if isinstance(statement, tirx.While):
        return tirx.While(statement.condition, body)
    assert isinstance(statement, tirx.AttrStmt)
    return tirx.AttrStmt(statement.node, statement.attr_key, statement.value, body)


def with_body(
    block: s_tir.SBlock, body: tirx.Stmt, annotations: Mapping[str, object]
) -> s_tir.SBlock:
    """The block with another body and other annotations."""
    return s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        annotations,
    )


def walk(statement: tirx.Stmt) -> Iterator[tirx.Stmt]:
    """The statement and all inside it, in program order."""
    yield statement
    for child in children(statement):
        yield from walk(child)

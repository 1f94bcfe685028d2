"""Errors that no person has chosen: drawn from the sources by operators."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from random import Random

from mutants.errors import ROOT
from mutants.rooms import Room

OTHER: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
PRINTED = ("optimizers.py", "/printed", "mixed.py")  # which `make generate` writes


@dataclass(frozen=True)
class Drawn:
    """A stretch of a file, in bytes, and what stands there instead."""

    error: str
    file: str
    begin: int
    end: int
    new: str

    @property
    def name(self) -> str:
        return f"{self.file.removeprefix('src/layerwise/')}: {self.error}"

    @property
    def mark(self) -> str:
        return blake2b(repr((self.file, self.begin, self.end, self.new)).encode(), digest_size=4).hexdigest()

    def broken(self) -> str:
        text = (ROOT / self.file).read_bytes()
        return (text[: self.begin] + self.new.encode() + text[self.end :]).decode()


def drawn(rooms: tuple[Room, ...], n: int, seed: int) -> list[tuple[Room, Drawn]]:
    """Return so many errors, as many of a room as it has places for them."""
    files = [str(file.relative_to(ROOT)) for file in sorted((ROOT / "src/layerwise").rglob("*.py"))]
    files = [file for file in files if not any(part in file for part in PRINTED)]
    every = [(room, one) for file in files if (room := room_of(file, rooms)) is not None for one in _places(file)]
    return Random(seed).sample(every, min(n, len(every)))


def room_of(file: str, rooms: tuple[Room, ...]) -> Room | None:
    """Return the room of a file."""
    found = [(len(path), i) for i, room in enumerate(rooms) for path in room.paths if file.startswith(path)]
    return rooms[max(found)[1]] if found else None


class _File:
    """A file whose places are known in bytes, as the parser counts columns."""

    def __init__(self, name: str) -> None:
        self.name, self.text = name, (ROOT / name).read_bytes()
        self._starts = [0]
        for line in self.text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.AST) -> tuple[int, int]:
        at: ast.expr = node  # type: ignore[assignment]
        begin, end = self._starts[at.lineno - 1], self._starts[(at.end_lineno or at.lineno) - 1]
        return begin + at.col_offset, end + (at.end_col_offset or 0)

    def of(self, node: ast.AST) -> str:
        begin, end = self.span(node)
        return self.text[begin:end].decode()

    def replaced(self, what: str, node: ast.AST, new: str) -> Drawn:
        line: int = node.lineno  # type: ignore[attr-defined]
        return Drawn(f"{what} in line {line}: {' '.join(new.split())[:80]}", self.name, *self.span(node), new)


def _places(name: str) -> Iterator[Drawn]:
    file = _File(name)
    for node in ast.walk(ast.parse(file.text)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            new = f"{file.of(node.left)} {OTHER[type(node.ops[0])]} {file.of(node.comparators[0])}"
            yield file.replaced("another comparison", node, new)
        elif isinstance(node, (ast.If, ast.IfExp, ast.While)):
            yield file.replaced("the condition negated", node.test, f"not ({file.of(node.test)})")
        elif isinstance(node, (ast.BinOp, ast.Slice)):
            yield from _off_by_one(file, node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield file.replaced("a statement dropped", node, "pass")
        if isinstance(node, ast.Call) and len(node.args) > 1 and not _starred(node):
            first, second = node.args[:2]
            if ast.dump(first) != ast.dump(second):
                new = f"{file.of(second)}, {file.of(first)}"
                yield Drawn(
                    f"arguments swapped in line {node.lineno}: {new[:80]}",
                    name,
                    file.span(first)[0],
                    file.span(second)[1],
                    new,
                )


def _off_by_one(file: _File, node: ast.AST) -> Iterator[Drawn]:
    for one in ast.iter_child_nodes(node):
        if isinstance(one, ast.Constant) and type(one.value) is int:
            yield file.replaced("a number off by one", one, str(one.value + 1))


def _starred(call: ast.Call) -> bool:
    """Return True if an argument has no text of its own that may stand elsewhere."""
    return any(isinstance(one, (ast.Starred, ast.YieldFrom)) for one in call.args[:2])

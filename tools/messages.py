"""Write every sentence that the library can say into tests/messages.txt, which a test compares.

python tools/messages.py

The sources hold the sentences: all strings of several words but docstrings, with what is filled in as `{expression}`.
The checks of options compose theirs, so each is given a wrong value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from layerwise.catalog.registry import ENTRIES
from layerwise.errors import HyperparameterError

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "layerwise"
LIST = ROOT / "tests" / "messages.txt"
GENERATED = "engines/gpu/printed", "engines/gpu/kernels"
SEVERAL_WORDS = re.compile(r"[A-Za-z`}'),.:;]\s+[A-Za-z`{'(]")
IN_CPP = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*')


def template(node: ast.expr) -> str | None:
    """Return the text of a string expression, with braces around what is filled in, or None if it is no string."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(hole(part) if isinstance(part, ast.FormattedValue) else literal(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [template(side) or f"{{{ast.unparse(side)}}}" for side in (node.left, node.right)]
        return None if template(node.left) is None and template(node.right) is None else "".join(parts)
    return None


def literal(part: ast.expr) -> str:
    """Return the constant text of an f-string, with its braces doubled."""
    return str(template(part)).replace("{", "{{").replace("}", "}}")


def hole(part: ast.FormattedValue) -> str:
    """Return what an f-string has for a value, such as `{name!r}`."""
    convert = "" if part.conversion < 0 else f"!{chr(part.conversion)}"
    spec = "" if part.format_spec is None else f":{template(part.format_spec)}"
    return f"{{{ast.unparse(part.value)}{convert}{spec}}}"


def strings(node: ast.AST) -> Iterator[str]:
    """Yield the strings below a node of a syntax tree, without docstrings. Strings in holes stay in their place."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        text = template(child) if isinstance(child, ast.expr) else None
        if text is None:
            yield from strings(child)
        else:
            yield text


def sentences(path: Path) -> set[str]:
    """Return the strings of several words in a file."""
    source = path.read_text("utf-8")
    if path.suffix == ".py":
        found = strings(ast.parse(source))
    else:
        found = ("".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', one)) for one in IN_CPP.findall(source))
    return {" ".join(text.split()) for text in found if SEVERAL_WORDS.search(text) and not is_code(text)}


def is_code(text: str) -> bool:
    """Return True for a type, or a call with a list. Without brackets, short sentences are Python as well."""
    if "[" not in text:
        return False
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return True


def refusals() -> set[str]:
    """Return what the checks of all rules' options say about a value that none of them takes."""
    said = set()
    for entry in ENTRIES.values():
        for spec in fields(entry.hyper):
            try:
                spec.metadata["check"](spec.name, 1j, spec.metadata["way_out"])
            except HyperparameterError as error:
                said.add(str(error))
    return said


def rooms() -> dict[str, set[str]]:
    """Return the sentences of each room: a folder or loose file of the package, the extension, and the options."""
    each: dict[str, set[str]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES).as_posix()
        if not name.startswith(GENERATED):
            each.setdefault(name.split("/")[0], set()).update(sentences(path))
    for path in sorted((ROOT / "csrc").glob("*.?pp")):
        each.setdefault("csrc", set()).update(sentences(path))
    return {**each, "options of all rules, given 1j": refusals()}


def text() -> str:
    """Return the whole listing."""
    sections = (f"# {name}\n" + "".join(f"{line}\n" for line in sorted(said)) for name, said in rooms().items() if said)
    return "\n".join(sections)


if __name__ == "__main__":
    LIST.write_text(text(), "utf-8")

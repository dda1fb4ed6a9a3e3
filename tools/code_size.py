"""How much code there is, and what in it has grown too large.

    python tools/code_size.py [FOLDER]

Lines are those of `src` that are neither blank nor comment nor docstring. With nothing too large it exits with 0, else with 1.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

CLASS_LINES, FUNCTION_LINES, ARGUMENTS, NESTING = 300, 60, 8, 4
COMPILED = "compiled"  # loops that are unrolled by hand for speed
COMMANDS = "cli"  # a command's options are the arguments of its function
_BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match, ast.AsyncFor, ast.AsyncWith)


def code_lines(text: str) -> int:
    """Lines that hold code."""
    docstrings = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            # also those that describe an attribute
            if isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str):
                docstrings |= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def _depth(node: ast.AST) -> int:
    """How deeply blocks are nested within each other; `elif` does not count."""
    deepest = 0
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            is_elif = isinstance(node, ast.If) and name == "orelse" and isinstance(child, ast.If)
            deepest = max(deepest, _depth(child) + (isinstance(child, _BLOCKS) and not is_elif))
    return deepest


def too_large(path: Path, text: str) -> Iterator[str]:
    """What exceeds the limits."""
    for node in ast.walk(ast.parse(text)):
        where = f"{path}:{getattr(node, 'lineno', 0)} {getattr(node, 'name', '')}"
        size = (getattr(node, "end_lineno", 0) or 0) - getattr(node, "lineno", 0) + 1
        if isinstance(node, ast.ClassDef) and size > CLASS_LINES:
            yield f"{where}: a class of {size} lines"
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or COMPILED in path.parts:
            continue
        given = node.args
        arguments = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)
        if size > FUNCTION_LINES and COMMANDS not in path.parts:
            yield f"{where}: a function of {size} lines"
        if arguments > ARGUMENTS and COMMANDS not in path.parts and node.name != "__init__":
            yield f"{where}: {arguments} arguments"
        if (depth := _depth(node)) > NESTING:
            yield f"{where}: nested {depth} deep"


def main(folder: Path) -> int:
    """Print the counts and what is too large; returns how many things are."""
    total, counts, found = 0, {}, []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        size = code_lines(text)
        total += size
        part = path.relative_to(folder).parts
        part = part[1] if len(part) > 1 else part[0]
        counts[part] = counts.get(part, 0) + size
        found += too_large(path.relative_to(folder), text)
    for part, size in counts.items():
        print(f"{size:6d}  {part}")
    print(f"{total:6d}  lines of code")
    print("\n".join(found))
    return len(found)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "src")) > 0)

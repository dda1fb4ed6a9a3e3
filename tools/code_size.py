"""How much code there is, and what in it has grown too large.

    python tools/code_size.py

Lines of code are those of `src` that are neither blank nor comment nor docstring; constants are numbers assigned at the top
of a module. Exits with 1 if a limit is exceeded.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

CODE_LINES = {"kernelmesh": 14_600, "kernelmesh_experiments": 3_000}
CONSTANTS = 80  # of both packages together
CLASS_LINES, FUNCTION_LINES, ARGUMENTS, NESTING = 250, 50, 6, 4  # with docstrings; arguments beside keyword-only ones
COMMANDS = "cli"  # the options of a command are the arguments of its function
COMPILED = "compiled"  # loops take one array after another
_BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match, ast.AsyncFor, ast.AsyncWith)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


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


def constants(text: str) -> list[str]:
    """The names that are assigned a number at the top of a module, alone or in a tuple of numbers."""
    found = []
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        names, values = (part.elts if isinstance(part, ast.Tuple) else [part] for part in (target, node.value))
        numbers = sum(_is_number(value) for value in values)
        name = ast.unparse(names[0])
        found += [name if len(names) < 2 else ast.unparse(names[i]) for i in range(min(numbers, len(names)))]
    return found


def _is_number(value: ast.expr) -> bool:
    if isinstance(value, ast.UnaryOp):
        return _is_number(value.operand)
    if isinstance(value, ast.BinOp):
        return _is_number(value.left) and _is_number(value.right)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def _depth(node: ast.AST) -> int:
    """How deeply blocks are nested within each other; `elif` does not count."""
    deepest = 0
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, (*_FUNCTIONS, ast.ClassDef)):
                continue
            is_elif = isinstance(node, ast.If) and name == "orelse" and isinstance(child, ast.If)
            deepest = max(deepest, _depth(child) + (isinstance(child, _BLOCKS) and not is_elif))
    return deepest


def too_large(path: Path, text: str) -> Iterator[str]:
    """What exceeds the limits."""
    is_command, is_compiled = COMMANDS in path.parts, COMPILED in path.parts
    for node in ast.walk(ast.parse(text)):
        where = f"{path}:{getattr(node, 'lineno', 0)} {getattr(node, 'name', '')}"
        size = (getattr(node, "end_lineno", 0) or 0) - getattr(node, "lineno", 0) + 1
        if isinstance(node, ast.ClassDef) and size > CLASS_LINES:
            yield f"{where}: a class of {size} lines"
        if not isinstance(node, _FUNCTIONS):
            continue
        arguments = [each.arg for each in (*node.args.posonlyargs, *node.args.args) if each.arg not in ("self", "cls")]
        if size > FUNCTION_LINES and not is_command:
            yield f"{where}: a function of {size} lines"
        if len(arguments) > ARGUMENTS and not (is_command or is_compiled):
            yield f"{where}: {len(arguments)} arguments"
        if (depth := _depth(node)) > NESTING:
            yield f"{where}: nested {depth} deep"


def main(source: Path) -> int:
    """Print the counts and what is too large; returns how many things are."""
    found, numbers = [], 0
    for package, most in CODE_LINES.items():
        sizes: Counter[str] = Counter()
        for path in sorted((source / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            part = path.relative_to(source / package).parts[0]
            sizes[part] += code_lines(text)
            numbers += len(constants(text))
            found += too_large(path.relative_to(source), text)
        for part, size in sizes.items():
            print(f"{size:6d}  {package}/{part}")
        print(f"{sizes.total():6d}  lines of code in {package}, at most {most}")
        if sizes.total() > most:
            found.append(f"{package}: {sizes.total()} lines of code")
    print(f"{numbers:6d}  constants, at most {CONSTANTS}")
    if numbers > CONSTANTS:
        found.append(f"{numbers} constants")
    print("\n".join(found))
    return len(found)


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parents[1] / "src") > 0)

"""One statement a line: no file assigns several expressions to several names at once.

ruff has no rule against ``a, b = x, y`` or ``a, b = (f(z) for z in (x, y))``, so this is one.
Swaps, and calls that return several values, are not packed.
"""

import ast
from pathlib import Path

from import_map import tree_of

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "experiments", "benchmarks", "tools")


def packed_assignments(tree):
    """Yield the packed assignments of the syntax tree of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple | ast.List) and is_packed(target, node.value):
                    yield node


def is_packed(target, value):
    if isinstance(value, ast.IfExp):
        return is_packed(target, value.body) or is_packed(target, value.orelse)
    if isinstance(value, ast.Tuple | ast.List):
        return not is_swap(target, value)
    return len(target.elts) > 1 and isinstance(value, ast.GeneratorExp | ast.ListComp)


def is_swap(target, value):
    names = [ast.unparse(element) for element in target.elts]
    values = [ast.unparse(element) for element in value.elts]
    return names != values and sorted(names) == sorted(values)


def test_no_packed_assignments():
    lines = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if ".venv" not in path.parts
        for node in packed_assignments(tree_of(path))
    ]
    assert lines == [], "one statement a line"


def test_what_is_packed_and_what_is_not():
    packed = ["a, b = x, y", "a, b = (x, y) if c else f()", "a, (b, c) = x, y", "a, b = a, b"]
    packed += ["pair = a, b = 1, 2", "a, b = (f(x) for x in (p, q))", "a, b = [f(x) for x in pair]"]
    plain = ["a, b = b, a", "a[i], a[j] = a[j], a[i]", "a, b = f()", "a, b = f() if c else g()"]
    plain += ["(a,) = (x for x in pair if x)", "pair: tuple[int, int] = 1, 2", "a = b = 0"]
    assert [text for text in packed if not list(packed_assignments(ast.parse(text)))] == []
    assert [text for text in plain if list(packed_assignments(ast.parse(text)))] == []

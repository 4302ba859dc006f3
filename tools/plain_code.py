"""Packed assignments: several expressions assigned to several names in one statement.

ruff has no rule against ``a, b = x, y`` or ``a, b = (f(z) for z in (x, y))``, so this is one.
Swaps, and calls that return several values, are not packed::

    python tools/plain_code.py     # lists every packed assignment of src, and their number per 1,000 lines
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "fedtailor"


def packed_assignments(text: str) -> Iterator[ast.Assign]:
    r"""Yield the packed assignments of a source text.

    >>> [node.lineno for node in packed_assignments("a, b = 1, 2\na, b = b, a\na, b = divmod(7, 2)")]
    [1]
    >>> len(list(packed_assignments("a, b = (1, 2) if c else (3, 4)")))
    1
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple | ast.List) and _is_packed(target, node.value):
                    yield node


def _is_packed(target: ast.Tuple | ast.List, value: ast.expr) -> bool:
    if isinstance(value, ast.IfExp):
        return _is_packed(target, value.body) or _is_packed(target, value.orelse)
    if isinstance(value, ast.Tuple | ast.List):
        return not _is_swap(target, value)
    return len(target.elts) > 1 and isinstance(value, ast.GeneratorExp | ast.ListComp)


def _is_swap(target: ast.Tuple | ast.List, value: ast.Tuple | ast.List) -> bool:
    names = [ast.unparse(element) for element in target.elts]
    values = [ast.unparse(element) for element in value.elts]
    return names != values and sorted(names) == sorted(values)


def main() -> None:
    """Print every packed assignment of the package, and their number per 1,000 lines."""
    count = 0
    lines = 0
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        lines += len(text.splitlines())
        for node in packed_assignments(text):
            count += 1
            print(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    print(f"{count} packed assignments in {lines:,} lines: {1000 * count / lines:.1f} per 1,000")


if __name__ == "__main__":
    main()

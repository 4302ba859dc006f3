"""One statement a line: no file assigns several expressions to several names at once."""

import ast

import pytest

import plain_code

FILES = [
    *plain_code.SOURCE.rglob("*.py"),
    *(plain_code.ROOT / "tools").glob("*.py"),
    *(plain_code.ROOT / "benchmarks").rglob("*.py"),
]


def package_of(path):
    if plain_code.SOURCE in path.parents:
        return path.relative_to(plain_code.SOURCE).parts[0].removesuffix(".py")
    return path.relative_to(plain_code.ROOT).parts[0]


def packed(path):
    nodes = plain_code.packed_assignments(path.read_text())
    return [
        f"{path.relative_to(plain_code.ROOT)}:{node.lineno}: {ast.unparse(node)}" for node in nodes
    ]


@pytest.mark.parametrize("package", sorted({package_of(path) for path in FILES}))
def test_no_packed_assignments(package):
    found = [line for path in sorted(FILES) if package_of(path) == package for line in packed(path)]
    assert found == [], "one statement a line"


@pytest.mark.parametrize(
    "text",
    [
        "a, b = x, y",
        "a, b = (x, y) if c else (z, w)",
        "a, b = (x, y) if c else f()",
        "self.a, self.b = a, b",
        "[a, b] = [1, 2]",
        "a, (b, c) = x, y",
        "a, *b = x, y, z",
        "pair = a, b = 1, 2",
        "a, b = (f(x) for x in (p, q))",
        "a, b = [f(x) for x in pair]",
        "a, b = a, b",
    ],
)
def test_packed_assignments_are_found(text):
    assert len(list(plain_code.packed_assignments(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "a, b = b, a",
        "a[i], a[j] = a[j], a[i]",
        "a, b, c = c, a, b",
        "a, b = f()",
        "a, b = f() if c else g()",
        "a, b = pair",
        "(a,) = (x for x in pair if x)",
        "pair = 1, 2",
        "pair: tuple[int, int] = 1, 2",
        "a = b = 0",
    ],
)
def test_swaps_and_calls_are_plain(text):
    assert list(plain_code.packed_assignments(text)) == []

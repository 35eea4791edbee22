"""Benchmarks are run by hand and import much: their text tells whether their imports are there."""

import ast
from pathlib import Path

import pytest

from tests import bench

PROGRAMS = sorted(Path(bench.__file__).parent.glob("*.py"))
ROOT = Path(__file__).parent.parent


def names_of(module: str) -> set[str]:
    """What stands at a module's top, and the modules of a package."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = {each.stem for each in path.glob("*.py")} if path.is_dir() else set()
    for node in ast.parse(source.read_text()).body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Assign() | ast.AnnAssign() | ast.Import() | ast.ImportFrom() | ast.With():
                stored = (each for each in ast.walk(node) if isinstance(each, ast.Name))
                found |= {each.id for each in stored if isinstance(each.ctx, ast.Store)}
                aliases = (each for each in ast.walk(node) if isinstance(each, ast.alias))
                found |= {each.asname or each.name for each in aliases}
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_what_a_benchmark_imports_of_the_tests_is_there(program: Path) -> None:
    imports = (
        node
        for node in ast.walk(ast.parse(program.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests")
    )
    for node in imports:
        missing = {alias.name for alias in node.names} - names_of(node.module or "")
        assert not missing, f"{node.module} has no {missing}"

"""The layout of the code: who may import whom, what files are called, what settings must say."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

ROOT = Path(__file__).parent.parent
PACKAGES = ("proto", "radix_rs", "router", "replica")

ALLOWED = {
    "radix_rs": {"radix_rs"},
    "proto": {"proto"},
    "router": {"router", "proto", "radix_rs"},
    "replica": {"replica", "proto", "radix_rs"},
}
"""Arrows point one way."""

ONLY_REPLICA = {"torch", "safetensors", "gguf", "numpy", "transformers"}

VAGUE = {"utils", "util", "common", "helpers", "helper", "base", "misc", "core_utils"}


def sources(package: str) -> list[Path]:
    """Python files of a package that people wrote."""
    found = sorted((ROOT / package).rglob("*.py*"))
    return [path for path in found if path.suffix in (".py", ".pyi") and "_pb2" not in path.name]


def imports(path: Path) -> Iterator[str]:
    """First names of all absolute imports in a file, wherever they stand."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_along_the_arrows(package: str) -> None:
    files = sources(package)
    assert files
    for path in files:
        wrong = set(imports(path)) & set(PACKAGES) - ALLOWED[package]
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


@pytest.mark.parametrize("package", ["proto", "radix_rs", "router"])
def test_only_the_replica_imports_what_a_router_image_does_not_have(package: str) -> None:
    for path in sources(package):
        wrong = set(imports(path)) & ONLY_REPLICA
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_only_src_py_sees_python() -> None:
    crate = ROOT / "radix_rs" / "src"
    naming = {
        path.relative_to(crate)
        for path in crate.rglob("*.rs")
        if re.search(r"\bpyo3\b", path.read_text())
    }
    assert naming, "nothing names pyo3: is the crate where it was?"
    assert all(path.parts[0] == "py" for path in naming), naming


@pytest.mark.parametrize("part", ["router", "replica"])
def test_only_main_knows_everybody(part: str) -> None:
    """Nothing imports the module that builds the process."""
    for path in sources(part):
        if path.name != "__main__.py":
            assert f"{part}.__main__" not in path.read_text(), path.relative_to(ROOT)


def test_no_file_has_a_name_that_says_nothing() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    names = tracked or [str(path.relative_to(ROOT)) for p in PACKAGES for path in sources(p)]
    assert names
    for name in names:
        stem = Path(name).name.split(".")[0].lower()
        assert stem not in VAGUE, name


@pytest.mark.parametrize("part", ["router", "replica"])
def test_every_setting_has_a_description_and_a_prefix(part: str) -> None:
    module = __import__(f"{part}.settings", fromlist=["settings"])
    kinds = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, BaseSettings) and kind is not BaseSettings
    ]
    assert kinds
    for kind in kinds:
        assert kind.model_config.get("env_prefix") == f"{part.upper()}_"
        for name, field in kind.model_fields.items():
            assert field.description, f"{kind.__name__}.{name} has no description"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_says_what_it_is(package: str) -> None:
    for path in sources(package):
        if path.read_text().strip():
            assert ast.get_docstring(ast.parse(path.read_text())), path.relative_to(ROOT)


def test_generated_modules_are_what_the_proto_files_give() -> None:
    check = [sys.executable, "-m", "proto.generate", "--check"]
    plugins = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": plugins}
    assert subprocess.run(check, cwd=ROOT, env=environment, check=False).returncode == 0

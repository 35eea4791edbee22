"""The example in the manual of the compiled part runs as it is written."""

import ast
import doctest
from array import array
from pathlib import Path
from time import monotonic

import radix_rs

MANUAL = Path(radix_rs.__file__).with_name("_native.pyi")


def test_the_example_of_an_embedded_router_does_what_it_says() -> None:
    classes = [n for n in ast.parse(MANUAL.read_text()).body if isinstance(n, ast.ClassDef)]
    text = next(ast.get_docstring(node) for node in classes if node.name == "Router") or ""
    names = {**vars(radix_rs), "array": array, "monotonic": monotonic}
    example = doctest.DocTestParser().get_doctest(text, names, "Router", str(MANUAL), 0)
    assert len(example.examples) > 5
    told: list[str] = []
    assert doctest.DocTestRunner().run(example, out=told.append).failed == 0, "".join(told)

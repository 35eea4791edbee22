"""Which core of the tree serves, and what is said where it is not the one hoped for."""

import logging
import sys

import pytest

import radix_rs
from radix_rs import Tree, derive_hash_key
from replica.py_tree import PyTree, chain
from replica.tree_core import CoreName, CoreUnavailable, TreeCore, make_tree
from replica.tree_error import TreeError

KEY = derive_hash_key(b"a secret")


def make(core: CoreName, **arguments: object) -> TreeCore:
    return make_tree(core, page_size=1, block_size=4, hash_key=KEY, model="m", **arguments)


@pytest.fixture
def no_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing radix_rs fails as where it was not built."""
    monkeypatch.setitem(sys.modules, "radix_rs", None)


def test_the_compiled_core_serves_where_it_can(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(make("auto"), Tree)
    assert isinstance(make("rust", policy="slru", policy_options={"threshold": 3}), Tree)
    assert not caplog.records


def test_the_python_core_serves_when_asked_for_and_nothing_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert isinstance(make("python"), PyTree)
    assert not caplog.records


@pytest.mark.usefixtures("no_extension")
def test_without_the_extension_auto_takes_the_python_core_and_says_so_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert isinstance(make("auto"), PyTree)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert (
        "the Python tree core serves why='the extension radix_rs does not load: " in record.message
    )


@pytest.mark.usefixtures("no_extension")
def test_the_compiled_core_asked_for_by_name_must_load() -> None:
    with pytest.raises(CoreUnavailable, match=r"^tree core rust: the extension radix_rs does not"):
        make("rust")


def test_an_option_the_extension_does_not_take_is_a_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = {"policy": "tlru", "policy_options": {"threshold": 1.5}}
    with pytest.raises(CoreUnavailable, match=r"^tree core rust: unsupported option: threshold"):
        make("rust", **options)
    assert isinstance(make("auto", **options), PyTree)
    assert "unsupported option: threshold is 1.5" in caplog.text
    assert isinstance(make("auto", policy="tlru", policy_options={"threshold": 1e30}), PyTree)


def test_an_extension_of_another_hash_version_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("radix_rs.HASH_VERSION", 0)
    assert isinstance(make("auto"), PyTree)
    assert f"the extension hashes by version 0, not {chain.HASH_VERSION}" in caplog.text


@pytest.mark.parametrize("secret", [b"", b"a secret", bytes(range(256))])
def test_replicas_and_routers_have_the_same_key_and_key_check(secret: bytes) -> None:
    key = chain.derive_hash_key(secret)
    assert key == radix_rs.derive_hash_key(secret)
    assert chain.key_check(key) == radix_rs.key_check(key)
    assert chain.HASH_VERSION == radix_rs.HASH_VERSION


def test_another_interpreter_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("platform.python_implementation", lambda: "PyPy")
    assert isinstance(make("auto"), PyTree)
    assert "unsupported platform: the extension is for CPython, this is PyPy" in caplog.text


@pytest.mark.parametrize("core", ["auto", "rust", "python"])
def test_what_no_core_takes_is_an_error_in_each(core: CoreName) -> None:
    with pytest.raises(TreeError, match=r'^policy "lifo": expected one of '):
        make(core, policy="lifo")
    with pytest.raises(TreeError, match=r"^page_size 3, block_size 4: "):
        make_tree(core, page_size=3, block_size=4, hash_key=KEY, model="m")

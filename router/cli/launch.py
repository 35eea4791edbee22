"""`prefixlb router` and `prefixlb replica`: become that process; flags are its own."""

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence

from router.cli import console

PROCESSES = {
    "router": "run one router",
    "replica": "run one replica",
}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    for module, purpose in PROCESSES.items():
        parser = commands.add_parser(
            module, help=f"{purpose}; --help lists its flags", add_help=False
        )
        parser.set_defaults(module=module)


def run(module: str, flags: Sequence[str]) -> int:
    """Does not return unless the process cannot be started."""
    if module == "replica" and importlib.util.find_spec("torch") is None:
        console.error('a replica needs torch: install the extra "replica" of this package')
        return 1
    command = [sys.executable, "-P", "-m", module, *flags]
    os.execv(sys.executable, command)

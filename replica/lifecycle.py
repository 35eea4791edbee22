"""From a model on disk to a process that serves, drains on SIGTERM and ends on a second one."""

import asyncio
import gc
import logging
import sys

import torch

from proto.errors import InvalidFile, InvalidModel, Unavailable
from proto.listening import check_address
from proto.signals import EndSignals
from replica.models.load import LoadedModel, load_model
from replica.process import running
from replica.settings import ReplicaSettings
from replica.tree_core import CoreUnavailable

log = logging.getLogger(__name__)


def run(settings: ReplicaSettings, hash_key: bytes) -> int:
    """The exit code: 0 after a signal, 1 if a port is taken, 2 without a usable model, core or
    certificate.

    Raises what the engine dies of, should it die.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    try:
        # Before the model, which takes long.
        check_address(settings.host, settings.port)
        settings.tls_files.read()
        device = choose_device(settings.device)
        log.info("loading the model path=%s device=%s", settings.model, device)
        loaded = load_model(settings.model, device)
        # What is there now stays. A full collection would look at each of torch's 200,000 objects:
        # a tenth of a second in which no thread computes, tells or answers.
        gc.freeze()
        asyncio.run(serve(settings, loaded, hash_key))
    except (InvalidFile, InvalidModel, CoreUnavailable, Unavailable) as error:
        print(f"prefixlb replica: {error}", file=sys.stderr)
        return 1 if isinstance(error, Unavailable) else 2
    return 0


async def serve(settings: ReplicaSettings, loaded: LoadedModel, hash_key: bytes) -> None:
    """Serve until a signal, then drain; a second signal ends the draining."""
    signals = EndSignals()
    async with running(settings, loaded, hash_key) as replica, asyncio.TaskGroup() as tasks:
        engine = tasks.create_task(replica.failed())
        drained = await signals.drained(replica.drain, settings.drain_timeout_s)
        log.info("replica ends drained=%s", drained)
        engine.cancel()


def choose_device(wanted: str) -> torch.device:
    """Raises InvalidModel if a GPU is wanted and there is none."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InvalidModel("--device is cuda, but torch finds no CUDA device")
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)

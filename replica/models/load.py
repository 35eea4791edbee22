"""From a path to a model and its text rules."""

from dataclasses import dataclass
from pathlib import Path

import torch

from proto.errors import InvalidModel
from proto.text import TextCodec
from replica.models.checkpoint import Checkpoint
from replica.models.gguf import read_gguf
from replica.models.huggingface import read_directory
from replica.models.llama import LlamaModel


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, and how text becomes its tokens."""

    model: LlamaModel
    codec: TextCodec


def load_model(path: Path, device: torch.device) -> LoadedModel:
    """Load a GGUF file or a Hugging Face directory.

    Weights are float32 on CPU (bfloat16 is many times slower there) and bfloat16 on CUDA.
    Raises InvalidModel, which says what is wrong with the path or the files.
    """
    checkpoint = read_checkpoint(path)
    try:
        model = build_model(checkpoint, device)
        return LoadedModel(model, TextCodec(checkpoint.tokenizer_json, checkpoint.rules))
    except InvalidModel as error:  # parts that know no file
        raise InvalidModel(f"{path}: {error}") from error


def read_checkpoint(path: Path) -> Checkpoint:
    if path.is_dir():
        return read_directory(path)
    if not path.exists():
        raise InvalidModel(f"no model at {path}: neither a GGUF file nor a directory")
    return read_gguf(path)


def build_model(checkpoint: Checkpoint, device: torch.device) -> LlamaModel:
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    with torch.inference_mode():
        return LlamaModel(
            checkpoint.config, checkpoint.tensors, checkpoint.inverse_frequencies, device, dtype
        )

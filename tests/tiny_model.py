"""A Llama model of two layers with random weights and a byte-level vocabulary, made on the spot."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from proto.detokenizer import BYTES
from proto.prefixlb.v1.replica_pb2 import TextRules
from proto.text import TextCodec
from replica.models.checkpoint import Checkpoint, inverse_frequencies
from replica.models.interface import ModelConfig
from replica.models.llama import LlamaModel
from replica.models.load import build_model

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("a", "n"), ("Ã", "©"))
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
VOCAB_SIZE = len(SPECIAL) + len(BYTES) + len(MERGES)
EOS = SPECIAL.index("<|im_end|>")

CONFIG = ModelConfig(
    model_id="tiny",
    num_layers=2,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=VOCAB_SIZE,
    context_length=2048,
    rope_theta=10_000.0,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    eos_token_ids=(EOS,),
)


def tiny_model(seed: int = 0) -> tuple[LlamaModel, TextCodec]:
    """The model on CPU and its codec; the same seed gives the same weights."""
    checkpoint = tiny_checkpoint(seed)
    model = build_model(checkpoint, torch.device("cpu"))
    return model, TextCodec(checkpoint.tokenizer_json, checkpoint.rules)


def write_tiny_model(directory: Path, seed: int = 0) -> None:
    """Write the same model as a Hugging Face directory."""
    checkpoint = tiny_checkpoint(seed)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(dict(checkpoint.tensors), directory / "model.safetensors")
    (directory / "tokenizer.json").write_bytes(checkpoint.tokenizer_json)
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": checkpoint.rules.bos_token,
                "eos_token": checkpoint.rules.eos_token,
                "chat_template": checkpoint.rules.chat_template,
            }
        )
    )
    (directory / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_act": "silu",
                "num_hidden_layers": CONFIG.num_layers,
                "hidden_size": CONFIG.hidden_size,
                "intermediate_size": CONFIG.intermediate_size,
                "num_attention_heads": CONFIG.num_heads,
                "num_key_value_heads": CONFIG.num_kv_heads,
                "head_dim": CONFIG.head_dim,
                "vocab_size": CONFIG.vocab_size,
                "max_position_embeddings": CONFIG.context_length,
                "rope_theta": CONFIG.rope_theta,
                "rms_norm_eps": CONFIG.rms_norm_eps,
                "tie_word_embeddings": CONFIG.tie_word_embeddings,
                "bos_token_id": 0,
                "eos_token_id": EOS,
            }
        )
    )


def tiny_checkpoint(seed: int = 0) -> Checkpoint:
    return Checkpoint(
        config=CONFIG,
        tensors=random_tensors(torch.Generator().manual_seed(seed)),
        inverse_frequencies=inverse_frequencies(CONFIG.rope_theta, CONFIG.head_dim),
        tokenizer_json=tokenizer().to_str().encode(),
        rules=TextRules(
            chat_template=CHAT_TEMPLATE,
            bos_token=SPECIAL[0],
            eos_token=SPECIAL[EOS],
            eos_token_ids=[EOS],
        ),
    )


def random_tensors(generator: torch.Generator) -> dict[str, torch.Tensor]:
    hidden, inner = CONFIG.hidden_size, CONFIG.intermediate_size
    q_size, kv_size = CONFIG.num_heads * CONFIG.head_dim, CONFIG.num_kv_heads * CONFIG.head_dim

    def matrix(rows: int, columns: int) -> torch.Tensor:
        # Wide enough that every token of the context moves the logits well above rounding.
        return torch.randn(rows, columns, generator=generator) * 2 * columns**-0.5

    tensors = {
        "model.embed_tokens.weight": matrix(CONFIG.vocab_size, hidden),
        "model.norm.weight": torch.ones(hidden),
    }
    for index in range(CONFIG.num_layers):
        layer = f"model.layers.{index}"
        tensors |= {
            f"{layer}.input_layernorm.weight": torch.ones(hidden),
            f"{layer}.self_attn.q_proj.weight": matrix(q_size, hidden),
            f"{layer}.self_attn.k_proj.weight": matrix(kv_size, hidden),
            f"{layer}.self_attn.v_proj.weight": matrix(kv_size, hidden),
            f"{layer}.self_attn.o_proj.weight": matrix(hidden, q_size),
            f"{layer}.post_attention_layernorm.weight": torch.ones(hidden),
            f"{layer}.mlp.gate_proj.weight": matrix(inner, hidden),
            f"{layer}.mlp.up_proj.weight": matrix(inner, hidden),
            f"{layer}.mlp.down_proj.weight": matrix(hidden, inner),
        }
    return tensors


def tokenizer() -> Tokenizer:
    """Special tokens, then every byte, then a few merges, among them one of the two bytes of é."""
    texts = [*SPECIAL, *BYTES, *("".join(merge) for merge in MERGES)]
    made = Tokenizer(
        models.BPE(vocab={text: place for place, text in enumerate(texts)}, merges=[*MERGES])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return made

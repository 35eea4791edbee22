"""Attention of a mixed batch over keys and values that lie anywhere in the pool."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from replica.models.interface import Segment


@dataclass(frozen=True)
class Chunk:
    """A segment of several new tokens: rows `rows` of the batch attend causally to `slots`."""

    rows: slice
    slots: torch.Tensor
    mask: torch.Tensor | None
    """Added to the scores, [new, context]; None is the square causal mask of a prompt's start."""


@dataclass(frozen=True)
class Decodes:
    """All segments of one new token, attended to together.

    `slots` (int64, [decodes * longest]) is padded with each segment's own last slot, never with one
    that may hold anything: a masked NaN would still spread.
    """

    rows: torch.Tensor | slice
    slots: torch.Tensor
    mask: torch.Tensor | None
    """Added to the scores, [decodes, 1, 1, longest]; None where all are equally long."""


@dataclass(frozen=True)
class AttentionPlan:
    """What every layer of one forward pass does alike, worked out once."""

    positions: torch.Tensor
    """int64, [tokens]"""
    new_slots: torch.Tensor
    """int64, [tokens]: where the keys and values of the batch go."""
    logit_rows: torch.Tensor
    """int64: the last row of each segment that wants logits."""
    chunks: tuple[Chunk, ...]
    decodes: Decodes | None

    @classmethod
    def of(
        cls, segments: Sequence[Segment], device: torch.device, dtype: torch.dtype
    ) -> "AttentionPlan":
        positions, new_slots, logit_rows, chunks = [], [], [], []
        decode_rows: list[int] = []
        decode_slots: list[torch.Tensor] = []
        row = 0
        for segment in segments:
            new, context = segment.num_new, len(segment.slots)
            slots = segment.slots.to(device, non_blocking=True)
            positions.append(torch.arange(context - new, context))
            new_slots.append(slots[context - new :])
            if new == 1:
                decode_rows.append(row)
                decode_slots.append(slots)
            else:
                chunks.append(
                    Chunk(slice(row, row + new), slots, causal_mask(new, context, device, dtype))
                )
            row += new
            if segment.wants_logits:
                logit_rows.append(row - 1)
        return cls(
            positions=torch.cat(positions).to(device),
            new_slots=torch.cat(new_slots),
            logit_rows=torch.tensor(logit_rows, dtype=torch.int64, device=device),
            chunks=tuple(chunks),
            decodes=pad(decode_rows, decode_slots, dtype) if decode_rows else None,
        )


def causal_mask(
    new: int, context: int, device: torch.device, dtype: torch.dtype
) -> torch.Tensor | None:
    """Added to the scores of the last `new` of `context` positions: each sees itself and before."""
    if new == context:
        return None
    mask = torch.full((new, context), -torch.inf, dtype=dtype, device=device)
    return mask.triu_(diagonal=context - new + 1)


def pad(rows: list[int], slots: list[torch.Tensor], dtype: torch.dtype) -> Decodes:
    device = slots[0].device
    consecutive = rows[-1] - rows[0] == len(rows) - 1
    where: torch.Tensor | slice = (
        slice(rows[0], rows[-1] + 1) if consecutive else torch.tensor(rows, device=device)
    )
    lengths = [len(own) for own in slots]
    longest = max(lengths)
    if min(lengths) == longest:
        return Decodes(where, torch.cat(slots), None)
    length = torch.tensor(lengths)[:, None]
    column = torch.arange(longest)
    start = length.cumsum(0) - length
    index = start + column.minimum(length - 1)
    mask = torch.zeros(len(lengths), longest, dtype=dtype)
    mask.masked_fill_(column >= length, -torch.inf)
    padded = torch.cat(slots)[index.flatten().to(device)]
    return Decodes(where, padded, mask.to(device)[:, None, None, :])


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: AttentionPlan
) -> torch.Tensor:
    """Attention of `query` [tokens, heads, head_dim] over one layer's pool.

    `keys` and `values` are [slots, kv_heads, head_dim] and already hold the batch's own.
    Returns [tokens, heads * head_dim].
    """
    tokens, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    out = torch.empty_like(query)
    for chunk in plan.chunks:
        # [1, heads, n, head_dim]: heads lead, as scaled_dot_product_attention wants them.
        attended = F.scaled_dot_product_attention(
            query[chunk.rows].transpose(0, 1)[None],
            keys.index_select(0, chunk.slots).transpose(0, 1)[None],
            values.index_select(0, chunk.slots).transpose(0, 1)[None],
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            enable_gqa=heads != kv_heads,
        )
        out[chunk.rows] = attended[0].transpose(0, 1)
    if plan.decodes is not None:
        slots = plan.decodes.slots
        own = query[plan.decodes.rows]
        count = len(own)
        # A key head's group of query heads stands where query positions stand: no head is repeated.
        attended = F.scaled_dot_product_attention(
            own.view(count, kv_heads, heads // kv_heads, head_dim),
            keys.index_select(0, slots).view(count, -1, kv_heads, head_dim).transpose(1, 2),
            values.index_select(0, slots).view(count, -1, kv_heads, head_dim).transpose(1, 2),
            attn_mask=plan.decodes.mask,
        )
        out[plan.decodes.rows] = attended.reshape(count, heads, head_dim)
    return out.view(tokens, heads * head_dim)

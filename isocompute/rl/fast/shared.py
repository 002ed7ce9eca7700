"""The decoder over a batch whose problems' rollouts share their prompt: each prompt is read once, shapes never change.

Tokens of responses and prompts stand in one flat array (`attention.Layout`), so that products, norms and sums are one
call each; only attention knows which tokens belong together. A stack of cells is one such array, one cell's tokens
after the other's (`stacked`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from isocompute.rl.decoder import Block, Decoder
from isocompute.rl.fast.attention import Layout, attend_shared, fits_attention
from isocompute.rl.fast.embedding import fits_look_up, look_up
from isocompute.rl.fast.passes import add_and_norm, predicting, swiglu
from isocompute.rl.fast.products import embedded, product
from isocompute.rl.rope import rope_turns
from isocompute.rl.sampler import Rollouts

__all__ = ["fits_shared", "shared_hidden"]


def fits_shared(decoder: Decoder, rollouts: Rollouts) -> bool:
    """Whether the sequences are short enough, and the family has no output biases."""
    slots, tokens = rollouts.prompts_BT.shape[1], rollouts.responses_BT.shape[1]
    config = decoder.config
    short = fits_attention(slots=slots, tokens=tokens - 1, head_dim=config.head_dim)
    return short and not config.output_bias and not config.mlp_bias


def shared_hidden(decoder: Decoder, rollouts: Rollouts, *, per_prompt: int) -> Tensor:
    """`_BTD`: what the head predicts the response's tokens from."""
    prompts_PS, responses_BT = rollouts.prompts_BT[::per_prompt], rollouts.responses_BT
    problems, slots = prompts_PS.shape
    cells = decoder.cells
    layout = Layout(problems, per_prompt, slots, responses_BT.shape[1] - 1, cells)
    padding_P = (slots - rollouts.prompt_lengths_B[::per_prompt]).to(torch.int32)
    parts = (responses_BT[:, :-1].reshape(cells, -1), prompts_PS.reshape(cells, -1))
    tokens_N = torch.cat(parts, dim=1).view(-1)
    turns = rope_turns(decoder.rope_speeds, decoder.rope_scale, slots + layout.tokens)
    turned = _Turns(*turns, padding_P)
    table_VD = decoder.embed_tokens.weight
    x_ND = look_up(table_VD, tokens_N) if fits_look_up(table_VD) else embedded(decoder, tokens_N)
    pending_ND: Tensor | None = None
    for layer in decoder.layers:
        assert isinstance(layer, Block)
        x_ND, pending_ND = _through(layer, x_ND, pending_ND, turned, layout)
    _, hidden_ND = add_and_norm(x_ND, pending_ND, decoder.norm.weight, decoder.norm.epsilon)
    return predicting(hidden_ND, layout)


class _Turns(NamedTuple):
    """RoPE's cosines and sines by position, and how far each prompt is moved to the right."""

    cos_TE: Tensor
    sin_TE: Tensor
    padding_P: Tensor


def _through(
    layer: Block, x_ND: Tensor, pending_ND: Tensor | None, turned: _Turns, layout: Layout
) -> tuple[Tensor, Tensor]:
    """`Block.forward` on flat tokens. The layer before leaves its last sum to this one, and this one to the next: a
    sum and the norm that follows are one pass over memory, and so are their gradients.
    """
    attention, mlp, norm = layer.self_attn, layer.mlp, layer.post_attention_layernorm
    x_ND, normed_ND = add_and_norm(x_ND, pending_ND, layer.input_layernorm.weight, norm.epsilon)
    attended_NC = attend_shared(
        product(normed_ND, *attention.joined_products()),
        attention.q_norm.weight if attention.qk_norm else None,
        attention.k_norm.weight if attention.qk_norm else None,
        *turned,
        layout,
        heads=attention.heads,
        groups=attention.groups,
        epsilon=attention.epsilon,
    )
    x_ND, normed_ND = add_and_norm(x_ND, product(attended_NC, attention.o_proj.weight), norm.weight, norm.epsilon)
    both = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight], dim=-2)
    return x_ND, product(swiglu(product(normed_ND, both)), mlp.down_proj.weight)

"""The decoder over a batch whose problems' rollouts share their prompt: each prompt is read once, shapes never change.

Tokens of responses and prompts stand in one flat array (`attention.Layout`), so that products, norms and sums are one
call each; only attention knows which tokens belong together.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from isocompute.engines.lm.decoder import Block, Decoder
from isocompute.engines.lm.fast.attention import Layout, attend_shared, fits_attention
from isocompute.engines.lm.sampler import Rollouts

__all__ = ["fits_shared", "shared_block", "shared_residual"]


def fits_shared(decoder: Decoder, rollouts: Rollouts) -> bool:
    """Whether the sequences are short enough, and the family has no output biases."""
    slots, tokens = rollouts.prompts_BT.shape[1], rollouts.responses_BT.shape[1]
    config = decoder.config
    short = fits_attention(slots=slots, tokens=tokens - 1, head_dim=config.head_dim)
    return short and not config.output_bias and not config.mlp_bias


def shared_residual(decoder: Decoder, rollouts: Rollouts, *, per_prompt: int) -> Tensor:
    """`_BTD`: the residual streams from which the response's tokens are predicted."""
    prompts_PS, responses_BT = rollouts.prompts_BT[::per_prompt], rollouts.responses_BT
    problems, slots = prompts_PS.shape
    layout = Layout(problems, per_prompt, slots, responses_BT.shape[1] - 1)
    padding_P = (slots - rollouts.prompt_lengths_B[::per_prompt]).to(torch.int32)
    tokens_N = torch.cat([responses_BT[:, :-1].reshape(-1), prompts_PS.reshape(-1)])
    positions_T = torch.arange(slots + layout.tokens, device=tokens_N.device)
    angles_TE = positions_T[:, None].float() * decoder.rope_speeds.float()
    cos_TE, sin_TE = (f(angles_TE) * decoder.rope_scale for f in (torch.cos, torch.sin))
    x_ND: Tensor = decoder.embed_tokens(tokens_N).float()
    block = decoder.fused(shared_block)
    for layer in decoder.layers:
        x_ND = block(layer, x_ND, cos_TE, sin_TE, padding_P, layout)
    first_prompt, width = layout.responses * layout.tokens, x_ND.shape[1]
    behind_BTD = x_ND[:first_prompt].view(layout.responses, layout.tokens, width)
    prompts_PSD = x_ND[first_prompt:].view(problems, slots, width)
    last_B1D = prompts_PSD[:, -1:].expand(-1, per_prompt, -1).reshape(-1, 1, width)
    return torch.cat([last_B1D, behind_BTD], dim=1)


def shared_block(
    layer: Block, x_ND: Tensor, cos_TE: Tensor, sin_TE: Tensor, padding_P: Tensor, layout: Layout
) -> Tensor:
    """`Block.forward` on flat tokens."""
    attention = layer.self_attn
    joined = attention.joined()
    qkv_NC = F.linear(layer.input_layernorm(x_ND), joined.weight, joined.bias)
    attended_NC = attend_shared(
        qkv_NC,
        attention.q_norm.weight if attention.qk_norm else None,
        attention.k_norm.weight if attention.qk_norm else None,
        cos_TE,
        sin_TE,
        padding_P,
        layout,
        heads=attention.heads,
        groups=attention.groups,
        epsilon=attention.epsilon,
    )
    x_ND = x_ND + attention.o_proj(attended_NC)
    out_ND: Tensor = x_ND + layer.mlp(layer.post_attention_layernorm(x_ND))
    return out_ND

"""The decoder over a batch whose problems' rollouts share their prompt: each prompt is read once, shapes never change.

Tokens of responses and prompts stand in one flat array (`attention.Layout`), so that products, norms and sums are one
call each; only attention knows which tokens belong together. A stack of cells is one such array, one cell's tokens
after the other's (`stacked`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from isocompute.engines.lm.decoder import Block, Decoder
from isocompute.engines.lm.fast.attention import Layout, attend_shared, fits_attention
from isocompute.engines.lm.fast.products import by_cell, embedded, normed, product
from isocompute.engines.lm.sampler import Rollouts

__all__ = ["fits_shared", "predicting", "shared_block", "shared_residual"]


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
    cells = decoder.cells
    layout = Layout(problems, per_prompt, slots, responses_BT.shape[1] - 1, cells)
    padding_P = (slots - rollouts.prompt_lengths_B[::per_prompt]).to(torch.int32)
    parts = (responses_BT[:, :-1].reshape(cells, -1), prompts_PS.reshape(cells, -1))
    tokens_N = torch.cat(parts, dim=1).view(-1)
    positions_T = torch.arange(slots + layout.tokens, device=tokens_N.device)
    angles_TE = positions_T[:, None].float() * decoder.rope_speeds.float()
    cos_TE, sin_TE = (f(angles_TE) * decoder.rope_scale for f in (torch.cos, torch.sin))
    x_ND = embedded(decoder, tokens_N)
    pending_ND: Tensor | None = None
    block = decoder.fused(shared_block)
    for layer in decoder.layers:
        x_ND, pending_ND = block(layer, x_ND, pending_ND, cos_TE, sin_TE, padding_P, layout)
    out_BTD: Tensor = decoder.fused(predicting)(x_ND, pending_ND, layout)
    return out_BTD


def predicting(x_ND: Tensor, pending_ND: Tensor | None, layout: Layout) -> Tensor:
    """Of all tokens those from which a response's are predicted: the prompt's last, and its own but the last."""
    x_ND = x_ND if pending_ND is None else x_ND + pending_ND
    width, x_GND = x_ND.shape[1], by_cell(x_ND, layout.cells)
    first_prompt = layout.responses * layout.tokens // layout.cells
    behind_BTD = x_GND[:, :first_prompt].reshape(layout.responses, layout.tokens, width)
    prompts_PSD = x_GND[:, first_prompt:].reshape(layout.problems, layout.slots, width)
    last_B1D = prompts_PSD[:, -1:].expand(-1, layout.per_prompt, -1).reshape(-1, 1, width)
    return torch.cat([last_B1D, behind_BTD], dim=1)


def shared_block(
    layer: Block,
    x_ND: Tensor,
    pending_ND: Tensor | None,
    cos_TE: Tensor,
    sin_TE: Tensor,
    padding_P: Tensor,
    layout: Layout,
) -> tuple[Tensor, Tensor]:
    """`Block.forward` on flat tokens. The layer before leaves its last sum to this one, and this one to the next: a
    sum and the norm that follows are one pass over memory, and so are their gradients.
    """
    if pending_ND is not None:
        x_ND = x_ND + pending_ND
    attention = layer.self_attn
    qkv_NC = product(normed(x_ND, layer.input_layernorm), *attention.joined_products())
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
    x_ND = x_ND + product(attended_NC, attention.o_proj.weight)
    normed_ND, mlp = normed(x_ND, layer.post_attention_layernorm), layer.mlp
    mixed_NF = F.silu(product(normed_ND, mlp.gate_proj.weight)) * product(normed_ND, mlp.up_proj.weight)
    return x_ND, product(mixed_NF, mlp.down_proj.weight)

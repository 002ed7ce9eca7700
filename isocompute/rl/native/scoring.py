"""The decoder's training pass on a CPU: real tokens only, every prompt once, element-wise parts by the C library."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from isocompute.rl.native.build import library
from isocompute.rl.native.functions import Layout, attend, normalise, swiglu

if TYPE_CHECKING:
    from isocompute.rl.decoder import Block, Decoder
    from isocompute.rl.sampler import Rollouts

__all__ = ["fits_native", "native_hidden", "short_enough"]


def fits_native(decoder: Decoder) -> bool:
    """Whether the library may be used, exists, and knows the decoder's numbers: FP32 on a CPU."""
    weight = decoder.embed_tokens.weight
    known = decoder.native and weight.device.type == "cpu" and weight.dtype == torch.float32
    return known and library() is not None


_LONGEST = 256
"""Tokens of a sequence up to which the library's attention is the faster one: it takes one query at a time, which is a
matrix product no more."""


def short_enough(rollouts: Rollouts) -> bool:
    """Whether prompts and responses are of a length that the library is good at."""
    return rollouts.prompts_BT.shape[1] + rollouts.responses_BT.shape[1] <= _LONGEST


def native_hidden(decoder: Decoder, rollouts: Rollouts) -> Tensor:
    """`_SD`: hidden states from which the response's tokens are predicted, one a real token, in the mask's order."""
    tokens_N, layout, wanted_S = _flat(rollouts)
    cos_1PK, sin_1PK = decoder.rotation(torch.arange(layout.slots)[None])
    x_ND: Tensor = decoder.embed_tokens(tokens_N)
    for layer in decoder.layers:
        x_ND = _block(cast("Block", layer), x_ND, (cos_1PK[0], sin_1PK[0]), layout)
    return normalise(x_ND.index_select(0, wanted_S), decoder.norm.weight, decoder.norm.epsilon)


def _block(layer: Block, x_ND: Tensor, rotation: tuple[Tensor, Tensor], layout: Layout) -> Tensor:
    """`Block.forward` on flat tokens."""
    attention, mlp = layer.self_attn, layer.mlp
    joined = attention.joined()
    normed_ND = normalise(x_ND, layer.input_layernorm.weight, layer.input_layernorm.epsilon)
    attended_NA = attend(
        F.linear(normed_ND, joined.weight, joined.bias),
        joined.norm_HK,
        rotation,
        layout,
        heads=attention.heads,
        key_heads=attention.groups,
        epsilon=attention.epsilon,
    )
    x_ND = _added(x_ND, attended_NA, attention.o_proj.weight, attention.o_proj.bias)
    normed_ND = normalise(x_ND, layer.post_attention_layernorm.weight, layer.post_attention_layernorm.epsilon)
    both = mlp.gate_proj, mlp.up_proj
    bias = torch.cat([part.bias for part in both]) if mlp.bias else None
    gated_NF = swiglu(F.linear(normed_ND, torch.cat([part.weight for part in both]), bias))
    return _added(x_ND, gated_NF, mlp.down_proj.weight, mlp.down_proj.bias)


def _added(x_ND: Tensor, inputs_NA: Tensor, weight_DA: Tensor, bias_D: Tensor | None) -> Tensor:
    """x and the product, whose sum starts from x."""
    out_ND = torch.addmm(x_ND, inputs_NA, weight_DA.t())
    return out_ND if bias_D is None else out_ND + bias_D


def _flat(rollouts: Rollouts) -> tuple[Tensor, Layout, Tensor]:
    """The tokens that are read, how they belong together, and which of them predict the response's tokens.

    Problem after problem: its prompt, then its responses, each without the last token, which predicts nothing.
    """
    prompts_BT, lengths_B = rollouts.prompts_BT.numpy(), rollouts.prompt_lengths_B.numpy()
    named = np.concatenate([prompts_BT, lengths_B[:, None]], axis=1)  # the length tells padding from a token
    _, first_P, problem_B = np.unique(named, axis=0, return_index=True, return_inverse=True)
    order_B = np.argsort(problem_B.reshape(-1), kind="stable")
    problem_B, responses_B = problem_B.reshape(-1)[order_B], rollouts.lengths_B.numpy()[order_B]
    own_B, prompt_P = np.maximum(responses_B - 1, 0), lengths_B[first_P]
    count_P = np.bincount(problem_B, minlength=len(first_P))
    first_response_P = np.concatenate([[0], np.cumsum(count_P)])
    total_P = prompt_P + np.bincount(problem_B, weights=own_B, minlength=len(first_P)).astype(np.int64)
    start_P = np.concatenate([[0], np.cumsum(total_P)])[:-1]
    before_B = np.cumsum(own_B) - own_B  # tokens of the responses before, of all problems
    start_B = (start_P + prompt_P - before_B[first_response_P[:-1]])[problem_B] + before_B
    tokens_N = np.empty(int(total_P.sum()), dtype=np.int64)
    row_S, step_S = _runs(own_B)
    tokens_N[start_B[row_S] + step_S] = rollouts.responses_BT.numpy()[order_B[row_S], step_S]
    row_T, step_T = _runs(prompt_P)
    width = prompts_BT.shape[1]
    tokens_N[start_P[row_T] + step_T] = prompts_BT[first_P[row_T], width - prompt_P[row_T] + step_T]
    # What predicts a response's first token is the end of its prompt; a later one, the token before it.
    place_B = np.empty_like(order_B)
    place_B[order_B] = np.arange(len(order_B))
    row_S, step_S = _runs(rollouts.lengths_B.numpy())
    row_S = place_B[row_S]
    prompt_end_S = (start_P + prompt_P)[problem_B[row_S]] - 1
    wanted_S = np.where(step_S == 0, prompt_end_S, start_B[row_S] + step_S - 1)
    layout = Layout(
        prompt_P=torch.from_numpy(start_P),
        length_P=torch.from_numpy(prompt_P),
        first_P=torch.from_numpy(first_response_P),
        response_B=torch.from_numpy(start_B),
        length_B=torch.from_numpy(own_B),
        slots=int((prompt_P[problem_B] + own_B).max()),
    )
    return torch.from_numpy(tokens_N), layout, torch.from_numpy(wanted_S)


def _runs(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row and place of every token of rows of such lengths, row by row."""
    row = np.repeat(np.arange(len(lengths)), lengths)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)

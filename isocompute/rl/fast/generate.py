"""Sampling in fixed shapes: buffers that stay in place, nothing read back by the host."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from isocompute.rl.config import DecoderConfig
from isocompute.rl.decoder import Decoder
from isocompute.rl.fast.lane import Lane
from isocompute.rl.fast.prompts import PromptReader
from isocompute.rl.fast.sampled import Sampled
from isocompute.rl.fast.weights import LayerWeights, join_weights
from isocompute.rl.fast.whole.generation import CompilerError, WholeGeneration, blocks_on
from isocompute.rl.fast.whole.shape import shape_for
from isocompute.rl.sampler import Rollouts

__all__ = ["Generator", "fits_kernels"]


def fits_kernels(config: DecoderConfig, *, top_p: float, temperature: float) -> bool:
    """Whether the kernels can do it: plain sampling, no output biases."""
    return not config.output_bias and not config.mlp_bias and top_p >= 1.0 and temperature > 0.0


class Generator:
    """Responses to `problems` prompts, `per_prompt` each, always of the same shape; of a stack, to this many of each
    cell, one cell after the other.

    A small model's responses are one kernel where the GPU can run it (`whole`), else some for each token (`Lane`).
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        problems: int,
        per_prompt: int,
        prompt_slots: int,
        new_slots: int,
        stop_tokens: tuple[int, ...],
        temperature: float,
        weights: list[LayerWeights] | None = None,
    ) -> None:
        weight, cells = decoder.embed_tokens.weight, decoder.cells
        self.per_prompt, self.problems, rows = per_prompt, problems, cells * problems * per_prompt
        self.rows, self.cell_rows, self.new_slots, device = rows, rows // cells, new_slots, weight.device
        joined = weights or join_weights(decoder)
        self.reader = PromptReader(decoder, joined, problems=problems, slots=prompt_slots, per_prompt=per_prompt)
        self.prompts_PT, self.padding_P = self.reader.prompts_PT, self.reader.padding_P
        self.sampled = Sampled(
            torch.zeros((rows, new_slots), dtype=torch.long, device=device),
            torch.zeros((rows, new_slots), device=device),
            *(torch.zeros(rows, dtype=torch.int32, device=device) for _ in range(2)),
        )
        self.seed, self.first_row = (torch.zeros(cells, dtype=torch.long, device=device) for _ in range(2))
        self.steps_T = torch.arange(new_slots, device=device)
        self.decoding = self._make_decoding(decoder, joined, stop_tokens=stop_tokens, temperature=temperature)

    def _make_decoding(self, decoder: Decoder, weights: list[LayerWeights], **options: Any) -> Lane | WholeGeneration:
        blocks, parts = blocks_on(decoder.embed_tokens.weight), (decoder, weights, self.reader.done, self.sampled)
        options |= {"first_row": self.first_row, "seed": self.seed}
        if blocks:
            shape = shape_for(decoder.config, cells=decoder.cells, cell_rows=self.cell_rows, blocks=blocks)
            try:
                if shape is not None:
                    return WholeGeneration(*parts, shape, **options)
            except CompilerError as error:
                warnings.warn(f"sampling goes the slower way: no kernel could be compiled ({error}).", stacklevel=3)
        return Lane(*parts, **options)

    @torch.no_grad()
    def run(self) -> Rollouts:
        """Sample from the prompts, seed and first row that stand in the buffers."""
        tokens_BT, logprobs_BT, lengths_B, stopped_B = self.sampled
        tokens_BT.zero_()
        logprobs_BT.zero_()
        self.reader.read()
        self.decoding.decode()
        lengths_P = self.prompts_PT.shape[1] - self.padding_P.long()
        return Rollouts(
            self.prompts_PT.repeat_interleave(self.per_prompt, dim=0),
            lengths_P.repeat_interleave(self.per_prompt),
            tokens_BT,
            logprobs_BT,
            self.steps_T[None] < lengths_B[:, None],
            stopped_B.bool(),
        )

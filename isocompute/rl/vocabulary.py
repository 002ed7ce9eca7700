"""The tokenizer of chain problems: one token a word, as `tokenizer.json` of the `tokenizers` library."""

from __future__ import annotations

import json
from pathlib import Path

from isocompute.problems.chain import SPECIAL, vocabulary

__all__ = ["write_chain_tokenizer"]


def write_chain_tokenizer(folder: Path, *, modulus: int, context: int) -> None:
    """Write the tokenizer's files, such that transformers opens them too."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = vocabulary(modulus)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL[:2]))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": SPECIAL[0],
        "eos_token": SPECIAL[1],
        "unk_token": SPECIAL[0],
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    generation = {"pad_token_id": 0, "eos_token_id": 1}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")

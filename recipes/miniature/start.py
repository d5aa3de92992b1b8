"""Write the miniature's starting point: a Llama of random weights and a tokenizer that is trained on its rows.

    python recipes/miniature/start.py --rows recipes/miniature/data/pretrain.jsonl --out runs/miniature/start

The tokenizer is byte-level BPE with single digits, ChatML and a mask token; the model has 4 layers of width 128.
"""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]


def texts(path: Path, limit: int) -> list[str]:
    """The messages of the first rows of a file of chats."""
    lines = path.read_text().splitlines()[:limit]
    return [message["content"] for line in lines for message in json.loads(line)["messages"]]


def tokenizer_of(rows: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    digits, rest = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, rest])
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=SPECIAL, initial_alphabet=alphabet)
    bpe.train_from_iterator([*rows, "user", "assistant", "system"], trainer)
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": "<|im_start|>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, **ends)
    tokenizer.chat_template = CHAT
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocabulary", type=int, default=640)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tokenizer = tokenizer_of(texts(options.rows, 20_000), options.vocabulary)
    torch.manual_seed(options.seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=options.width,
        intermediate_size=options.width * 11 // 4,
        num_hidden_layers=options.layers,
        num_attention_heads=options.width // 32,
        num_key_value_heads=options.width // 32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    size = sum(weight.numel() for weight in model.parameters())
    print(f"{size:,} weights, {len(tokenizer)} tokens: {options.out}")


if __name__ == "__main__":
    main()

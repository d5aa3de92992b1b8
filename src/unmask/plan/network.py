"""The sizes of a base, from its config alone, and how many values its parts have."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import CheckpointError
from unmask.model.files import read_json
from unmask.model.hf import OFFICIAL
from unmask.model.sources import locate


@dataclass(frozen=True)
class Network:
    """A decoder of Llama or Qwen shape: grouped queries, a gated feed-forward, RMS norms.

    tied: the head is the embedding; biased: queries, keys and values have a bias; normed: queries and keys a norm.
    """

    hidden: int
    ff: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    biased: bool = False
    normed: bool = False

    @property
    def queries(self) -> int:
        """Width of all queries of a position."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all keys of a position; the values' too."""
        return self.kv_heads * self.head_dim

    @property
    def linear(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of each matrix of a layer."""
        h, q, k, ff = self.hidden, self.queries, self.keys, self.ff
        return (h, q), (h, k), (h, k), (q, h), (h, ff), (h, ff), (ff, h)

    @property
    def matrices(self) -> int:
        """Values in the matrices of all layers."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.linear)

    @property
    def parameters(self) -> int:
        """Values of the whole network."""
        small = 2 * self.hidden + self.biased * (self.queries + 2 * self.keys) + self.normed * 2 * self.head_dim
        return self.matrices + self.layers * small + self.hidden + (2 - self.tied) * self.vocab * self.hidden

    def adapters(self, rank: int) -> int:
        """Values of low-rank adapters on all matrices of the layers."""
        return self.layers * rank * sum(inputs + outputs for inputs, outputs in self.linear)


KNOWN = {
    "Qwen/Qwen2.5-1.5B-Instruct": Network(1536, 8960, 28, 12, 2, 128, 151936, tied=True, biased=True),
    "Qwen/Qwen2.5-7B-Instruct": Network(3584, 18944, 28, 28, 4, 128, 152064, tied=False, biased=True),
}
"""The bases of the paper, so that its recipes can be planned without their files."""
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


def network_of(base: str) -> Network:
    """The sizes of a base: known here, or read from its config.json; no weights are needed.

    Raises CheckpointError where there is no such base or its config does not state a size.
    """
    if base in KNOWN and not Path(base).is_dir():
        return KNOWN[base]
    file = locate(base) / "config.json"
    entries = read_json(file)
    return _from_config({**entries, **entries.get("text_config", {})}, file)


def _from_config(entries: dict[str, Any], file: Path) -> Network:
    missing = [key for key in SIZES if not isinstance(entries.get(key), int)]
    if missing:
        raise CheckpointError(f"{file} states no {missing[0]}, so nothing can be planned; give another base")
    hidden, ff, layers, heads, vocab = (entries[key] for key in SIZES)
    kind = entries.get("model_type")
    return Network(
        hidden,
        ff,
        layers,
        heads,
        entries.get("num_key_value_heads") or heads,
        entries.get("head_dim") or hidden // heads,
        vocab,
        tied=bool(entries.get("tie_word_embeddings", kind == "gemma3_text")),
        biased=kind in ("qwen2", OFFICIAL) or bool(entries.get("attention_bias")),
        normed=kind == "qwen3",
    )

"""The universal backbone: any unmodified Hugging Face causal LM decodes blocks.

Nothing is forked. The network is handed a four-dimensional mask, explicit positions, and our `StaticCache` in the
place of its own. This is the one place that calls a transformers model for decoding.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from unmask.core.masks import decoding_mask
from unmask.errors import UnsupportedModelError
from unmask.model.backbone import Feed, pack
from unmask.model.cache import Plan, StaticCache
from unmask.model.rough import rough_copy
from unmask.model.skinny import make_skinny


class UniversalBackbone:
    """Decodes with `model`; feeds with `draft=True` use `draft_model` where there is one.

    mask_vector: Float [hidden], what a masked slot is embedded as; None takes the embedding of `mask_id`, which is then
    one of its rows. mask_id None: a plain model, which is never fed a masked slot.
    """

    name, ragged, gates = "universal", False, False

    def __init__(
        self, model: Any, draft_model: Any | None = None, *, mask_id: int | None, mask_vector: Tensor | None = None
    ) -> None:
        self.model, self.draft_model, self.rough_model = model, draft_model or model, None
        self.mask_id, self.mask_vector = mask_id, mask_vector
        for each in (self.model, self.draft_model):
            make_skinny(each.eval())
        config: Any = model.config
        self.vocab_size = model.get_output_embeddings().weight.shape[0]
        self.max_positions = getattr(config, "max_position_embeddings", None) or 2**31
        text = config.get_text_config()
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        self.position_bytes = 2 * text.num_hidden_layers * heads * dim * next(model.parameters()).element_size()
        self.windows = layer_windows(config)
        check_windows(self.windows, interface(model.get_decoder())[1], config.model_type)
        self.device = next(model.parameters()).device

    def new_cache(self, rows: int, capacity: int) -> StaticCache:
        return StaticCache(rows, capacity)

    def prepare(self) -> None:
        """Make the int8 copy that drafts which are checked come from, where there are draft adapters."""
        if self.rough_model is None and self.draft_model is not self.model:
            self.rough_model = rough_copy(self.draft_model)

    def apart(self, feed: Feed) -> bool:
        return feed.draft

    def _network(self, feed: Feed) -> Any:
        """Which network computes a feed. A draft that is checked may come from an int8 copy."""
        if not feed.draft:
            return self.model
        if not feed.checked or self.draft_model is self.model:
            return self.draft_model
        self.prepare()
        return self.rough_model

    @torch.inference_mode()
    def forward(self, cache: StaticCache, rows: list[int], feeds: list[Feed]) -> Tensor:
        assert not (feeds[0].draft and feeds[0].settled), "two networks cannot share a forward"
        model = self._network(feeds[0])
        packed = {name: tensor.to(self.device) for name, tensor in pack(feeds, spare=cache.capacity).items()}
        width = int(packed["ends"].max())
        everyone = rows == list(range(cache.rows))
        cache.plan = Plan(torch.tensor(rows, device=self.device), everyone, packed["slots"], width)
        hidden = decoder(
            model,
            embed(model, packed["tokens"], packed["masked"], self.mask_id, self.mask_vector),
            packed["positions"],
            {
                kind: decoding_mask(packed["ends"], packed["positions"], width, window)
                for kind, window in self.windows.items()
            },
            cache,
        )
        return head(model, hidden.flatten(0, 1)[packed["read"]])


def layer_windows(config: Any) -> dict[str, int | None]:
    """Attention window by layer type; a network whose layers are all alike has the single type 'all'.

    Read off the config in transformers' own terms: `layer_types` where layers differ, else `sliding_window` (which
    Qwen2 and Qwen3 leave unused while `use_sliding_window` is off).
    """
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    kinds = set(getattr(config, "layer_types", None) or ())
    if not kinds:
        return {"all": window}
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}


def check_windows(windows: dict[str, int | None], takes_mapping: bool, family: str) -> None:
    """Refuse a network whose layers see different windows but that takes one mask for all of them."""
    if len(set(windows.values())) > 1 and not takes_mapping:
        raise UnsupportedModelError(
            f"{family} mixes sliding and full attention but takes a single mask, so a layer would silently lose its "
            "window; use a family whose network picks its mask by layer type (Gemma 3, Qwen 2 and 3)"
        )


def embed(model: Any, tokens: Tensor, masked: Tensor, mask_id: int | None, mask_vector: Tensor | None) -> Tensor:
    """Float [row, token, hidden]: the model's embedding of tokens [row, token], the mask's where `masked`.

    With a mask_vector the mask id is never looked up: it may lie beyond the embedding's rows.
    """
    stand_in = mask_id if mask_vector is None and mask_id is not None else 0
    embedded = model.get_input_embeddings()(torch.where(masked, stand_in, tokens))
    if mask_vector is None:
        return embedded
    return torch.where(masked[..., None], mask_vector.to(embedded.dtype), embedded)


def decoder(model: Any, embedded: Tensor, positions: Tensor, masks: dict[str, Tensor], cache: object) -> Tensor:
    """Last hidden state [row, token, hidden]. The one call into a transformers network.

    masks: Bool [row, 1, query, key] by layer type. The name of the cache argument changed in transformers 5.2x.
    """
    body = model.get_decoder()
    cache_name, takes_mapping = interface(body)
    mask = masks if takes_mapping else next(iter(masks.values()))
    out = body(
        inputs_embeds=embedded,
        attention_mask=mask,
        position_ids=positions,
        use_cache=cache is not None,
        **{cache_name: cache},
    )
    return out.last_hidden_state


def head(model: Any, hidden: Tensor) -> Tensor:
    """Logits [token, vocab] of hidden [token, hidden], soft-capped where the family caps them."""
    logits = model.get_output_embeddings()(hidden)
    cap = getattr(model.config, "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def interface(body: nn.Module) -> tuple[str, bool]:
    """The name of a network's cache argument, and whether it picks its mask by layer type from a mapping."""
    kind = type(body)
    if kind not in _INTERFACES:
        forward = kind.forward
        name = "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"
        _INTERFACES[kind] = name, "layer_types" in inspect.getsource(forward)
    return _INTERFACES[kind]


_INTERFACES: dict[type[nn.Module], tuple[str, bool]] = {}
"""Read off a network's source once, since that is slow."""

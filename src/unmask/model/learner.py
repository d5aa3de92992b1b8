"""What is trained: a base with its mask token and, for a low-rank recipe, adapters on all linear layers."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unmask.config import BlockSpec
from unmask.core.chain import shifted
from unmask.core.loss import label_loss, teacher_loss
from unmask.core.streams import StreamBatch
from unmask.errors import CheckpointError, ConfigError
from unmask.model import adapters, checkpoint
from unmask.model.attention import keeps_own_attention, use_our_attention
from unmask.model.masktoken import prepare_mask
from unmask.model.training import joint, split
from unmask.model.universal import head
from unmask.recipe import Adapt

AUTOCAST = {"fp32": torch.float32, "bf16": torch.bfloat16}
CHAIN = ("chain_down", "chain_up")


class Learner(nn.Module):
    """A batch of streams in, summed losses out. Trainable weights are float32."""

    def __init__(self, recipe: Adapt) -> None:
        super().__init__()
        self.recipe = recipe
        self.base_ref = recipe.base
        loaded = checkpoint.load_checkpoint(recipe.base)
        if adapters.is_adapter(loaded.path):
            raise ConfigError(f"base is '{recipe.base}', an adapter; give its base, and the adapter as start_from")
        self.base_path, self.own_dtype, self.tokenizer = loaded.path, loaded.dtype, loaded.tokenizer
        loaded.model.float()
        self.diffusion = recipe.objective == "diffusion"
        stated = loaded.spec.mask_id if loaded.spec is not None and recipe.mask_id is None else recipe.mask_id
        needed = self.diffusion or (recipe.reference_quirks and recipe.padding)
        mask_id = prepare_mask(loaded.model, loaded.tokenizer, stated) if needed else 0  # else nothing is masked
        self.spec = BlockSpec(
            block_size=recipe.block_size,
            sub_block_size=recipe.sub_block_size,
            mask_id=mask_id,
            stop_ids=loaded.stop_ids,
            context=recipe.context,
            adapter_scope=recipe.adapter_scope,
        )
        self.mask_vector: nn.Parameter | None = None
        self.chain_down: nn.Parameter | None = None
        self.chain_up: nn.Parameter | None = None
        self.model: Any = loaded.model.eval()  # no dropout: noise is the only randomness, and it is seeded
        self._no_split_modules = self.model._no_split_modules  # the layers that FSDP2 splits one by one
        use_our_attention(self.model)
        self.peft: Any = None
        if recipe.method == "low-rank":
            self._add_adapters()
        elif recipe.start_from:
            raise ConfigError("start_from continues an adapter; for method 'full' give the earlier model as base")
        if recipe.checkpointing:
            _checkpoint_layers(self.model)

    def _add_adapters(self) -> None:
        from peft import LoraConfig, get_peft_model

        recipe = self.recipe
        torch.manual_seed(recipe.seed)
        with warnings.catch_warnings():  # peft asks transformers by the old name
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            self.peft = get_peft_model(
                self.model,
                LoraConfig(r=recipe.rank, lora_alpha=recipe.alpha, target_modules="all-linear", lora_dropout=0.0),
            )
        if self.diffusion:
            self.mask_vector = nn.Parameter(_mean_embedding(self.model))
        if recipe.chain:
            self._add_chain(recipe.chain)
        if recipe.start_from:
            self._continue_from(Path(recipe.start_from))
        if recipe.chain_only:
            for name, parameter in self.named_parameters():
                parameter.requires_grad_(name in CHAIN)

    def _add_chain(self, rank: int) -> None:
        """A chain that changes nothing yet: `chain_up` is zero, as the second matrix of a low-rank adapter is."""
        if getattr(self.model.config, "final_logit_softcapping", None) is not None:
            raise ConfigError(f"chain is {rank}; it needs a network whose logits are linear in its last hidden state")
        width = self.model.get_input_embeddings().weight.shape[1]
        self.chain_down = nn.Parameter(torch.randn(rank, width) * width**-0.5)
        self.chain_up = nn.Parameter(torch.zeros(rank, width))

    @property
    def chain(self) -> tuple[nn.Parameter, nn.Parameter] | None:
        """Down and up of the chain, both [rank, hidden]; None where the recipe has none."""
        return None if self.chain_down is None or self.chain_up is None else (self.chain_down, self.chain_up)

    def _continue_from(self, directory: Path) -> None:
        from peft import set_peft_model_state_dict

        start, recipe = adapters.read_adapter(directory), self.recipe
        self._check_start(directory)
        rank = next(iter(start.pairs.values()))[0].shape[0]
        if rank > recipe.rank:
            raise ConfigError(f"start_from {directory} has rank {rank}, the recipe {recipe.rank}; use {rank} or more")
        tensors, own_state = adapters.read_tensors(directory / adapters.WEIGHTS), adapters.peft_state(self.peft)[0]
        laid = adapters.laid_into(own_state, tensors, start.scale / (recipe.alpha / recipe.rank))
        found, wanted = ({name: t.shape for name, t in state.items()} for state in (laid, own_state))
        if odd := sorted(name for name in found | wanted if found.get(name) != wanted.get(name)):
            raise ConfigError(f"start_from {directory} does not fit the base {recipe.base} (weight {odd[0]})")
        vector, own = start.mask_vector, self.mask_vector
        if vector is not None and own is not None and vector.shape != own.shape:
            raise ConfigError(f"start_from {directory} does not fit the base {recipe.base} ({adapters.MASK})")
        set_peft_model_state_dict(self.peft, laid)
        if vector is not None and own is not None:
            own.data.copy_(vector)
        self._continue_chain(start, directory)

    def _continue_chain(self, start: adapters.Adapter, directory: Path) -> None:
        rank = 0 if start.chain is None else start.chain[0].shape[0]
        if start.chain is None or self.chain is None:
            if rank:
                raise ConfigError(
                    f"start_from {directory} has a chain of rank {rank}, the recipe has none; use the same"
                )
            return
        if rank != self.recipe.chain:
            raise ConfigError(
                f"start_from {directory} has a chain of rank {rank}, the recipe {self.recipe.chain}; use the same"
            )
        for own, found in zip(self.chain, start.chain, strict=True):
            own.data.copy_(found)

    def _check_start(self, directory: Path) -> None:
        """ConfigError where an adapter was trained on another base, or otherwise than this recipe trains."""
        about = adapters.about(directory)
        spec, base = about.get("spec"), about.get("base_sha256")
        if base and base != (own := checkpoint.base_digest(self.base_path)):
            raise ConfigError(
                f"start_from {directory} was trained on a base with sha256 {base}, {self.recipe.base} has {own}; "
                "give its own base"
            )
        if spec and not self.diffusion:
            raise ConfigError(f"start_from {directory} was trained to fill masks, objective 'next-token' has none")
        for key in ("mask_id", "context", "adapter_scope"):
            if spec and spec.get(key) != (now := getattr(self.spec, key)):
                raise ConfigError(
                    f"start_from {directory} has {key} {spec.get(key)!r}, the recipe {now!r}; use the same"
                )

    def trainable(self) -> dict[str, nn.Parameter]:
        """Name → parameter that learns, in a fixed order."""
        if self.recipe.chain_only:  # PEFT lets its weights learn again whenever adapters are switched on
            return {name: p for name, p in self.named_parameters() if name in CHAIN}
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    @property
    def saved_as(self) -> torch.dtype:
        """The type on disk of what learns: adapters are saved in float16, a whole model in its base's type."""
        return self.own_dtype if self.peft is None else torch.float16

    def forward(self, batch: StreamBatch) -> Tensor:
        """Float [4]: the summed loss over masked labels, over next-token labels, the divergence from the clean stream's
        own law at the masked labels, and the loss over masked labels with the chain; the last three are 0 unless the
        recipe has them."""
        causal = self.spec.context == "causal" or not self.diffusion
        with torch.autocast(
            batch.ids.device.type, dtype=AUTOCAST[self.recipe.dtype], enabled=self.recipe.dtype != "fp32"
        ):
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.recipe.chain_only):
                hidden = self._hidden(batch, causal)
            return torch.stack(self._losses(hidden[0], batch))

    def _hidden(self, batch: StreamBatch, causal: bool) -> Tensor:
        """Hidden states [1, token, hidden] of both streams."""
        masked: dict[str, Any] = {"mask_id": self.spec.mask_id, "mask_vector": self.mask_vector}
        if self.spec.adapter_scope == "draft":
            return split(self.model, batch, **masked, adapters_off=self.peft.disable_adapter)
        return joint(self.model, batch, **masked, causal=causal)

    def _losses(self, hidden: Tensor, batch: StreamBatch) -> list[Tensor]:
        recipe, drafted = self.recipe, hidden[batch.source]
        weight = self._weight(batch)
        masked = label_loss(drafted, batch.target, self._head, weight)
        following = taught = chained = masked.new_zeros(())
        if recipe.ar_weight:
            following = label_loss(hidden[batch.ar_source], batch.ar_target, self._head)
        if recipe.distill:
            taught = teacher_loss(drafted, hidden[batch.teacher], self._head)
        if self.chain is not None:
            before = self.model.get_input_embeddings().weight[batch.ids[0, batch.source]]
            unknown = batch.masked[0, batch.source].unsqueeze(-1)  # what stands before a slot, where it is masked too
            moved = drafted + torch.where(unknown, shifted(before, *self.chain), 0.0)
            chained = label_loss(moved, batch.target, self._head, weight)
        return [masked, following, taught, chained]

    def _weight(self, batch: StreamBatch) -> Tensor | None:
        """Weight of each masked label by its place in its block, Float [label]; the first that can be masked has 1.

        In context causal a label's logit is read inside its own block, at the slot before it.
        """
        if self.recipe.slot_decay == 1:
            return None
        place = (batch.streams.position - batch.streams.start)[0, batch.source]
        return torch.pow(self.recipe.slot_decay, place.float())

    def _head(self, hidden: Tensor) -> Tensor:
        return head(self.model, hidden)

    def save(self, directory: Path) -> None:
        """Write the model so that it loads for decoding: an adapter (`stored_as`), or a whole model in the base's type.

        A next-token fine-tune is saved as the plain model or adapter that it is, without a BlockSpec.
        """
        spec = self.spec if self.diffusion else None
        if broken := unfit({name: p.detach() for name, p in self.trainable().items()}, self.saved_as):
            raise CheckpointError(f"{broken}; nothing was saved to {directory}, lower learning_rate or weight_decay")
        if self.peft is None:
            checkpoint.save_full(self.model, self.tokenizer, spec, directory, dtype=self.own_dtype)
            return
        state, config = adapters.peft_state(self.peft)
        vector = None if self.mask_vector is None else self.mask_vector.detach().half()
        chain = None if self.chain is None else (self.chain[0].detach().half(), self.chain[1].detach().half())
        if self.recipe.stored_as == "float8":
            state, config = adapters.in_float8(state, config)
        else:
            state = {name: t.half() for name, t in state.items()}
        checkpoint.save_adapter(state, config, vector, spec, self.base_ref, directory, chain=chain)


def _checkpoint_layers(model: Any) -> None:
    """Let layers keep their inputs only, and compute the rest again in the backward pass.

    transformers does so for layers in training mode; they alone are put into it, so that no dropout acts.
    """
    if not getattr(model, "supports_gradient_checkpointing", False) or keeps_own_attention(model):
        raise ConfigError(f"checkpointing is not possible for model type '{model.config.model_type}'; switch it off")
    if hasattr(model, "activation_checkpointing_enable"):  # its name from transformers 5.2x on
        model.activation_checkpointing_enable({"use_reentrant": False})
    else:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    for part in model.modules():
        if getattr(part, "gradient_checkpointing", False) and part is not model.get_decoder():
            part.training = True


def _mean_embedding(model: Any) -> Tensor:
    """Mean over the vocabulary of what the embedding gives (some families scale inside it)."""
    embedding = model.get_input_embeddings()
    with torch.no_grad():
        return embedding(torch.arange(embedding.weight.shape[0], device=embedding.weight.device)).mean(dim=0)


def unfit(tensors: dict[str, Tensor], dtype: torch.dtype) -> str:
    """What is not finite in a type, in words; nothing where all are."""
    for name, tensor in tensors.items():
        if not tensor.to(dtype).isfinite().all():
            kind = str(dtype).removeprefix("torch.")
            return f"{name} is not finite in {kind}: its largest value is {float(tensor.abs().max()):.3g}"
    return ""


def load_trainable(learner: Learner, tensors: dict[str, Tensor], where: Path) -> None:
    """Put saved weights back, bit for bit."""
    wanted = learner.trainable()
    if set(tensors) != set(wanted):
        odd = sorted(set(tensors) ^ set(wanted))[0]
        raise CheckpointError(
            f"{where} does not fit the recipe (weight {odd}); resume with the recipe it was made with"
        )
    for name, parameter in wanted.items():
        parameter.data.copy_(tensors[name])

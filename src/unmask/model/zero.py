"""DeepSpeed's ZeRO: the weights and AdamW's moments that it divides over processes, whole and by parameter.

Stage 1 and 2 keep whole weights and divide one flat float32 copy of them, with its moments; stage 3 divides the weights
too. Reading and writing go through DeepSpeed's own functions for it (`deepspeed.utils.safe_get_full_*` and relatives,
deepspeed.readthedocs.io/en/latest/zero3.html#debugging), which every process of a run must call alike.
"""

from typing import Any

import torch
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_sq")


def load_whole() -> None:
    """Let transformers load whole weights although stage 3 is chosen: adapters and mask start from them."""
    from transformers.integrations import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()


def is_divided(parameter: Tensor) -> bool:
    """Whether stage 3 divides this parameter; its data is then empty between forwards."""
    return hasattr(parameter, "ds_id")


def drives(optimizer: Any) -> bool:
    """Whether the optimizer is DeepSpeed's around another one, of any stage."""
    return hasattr(optimizer, "bit16_groups") or hasattr(optimizer, "fp16_groups")


def whole_weights(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Name → the parameter as the optimizer holds it: float32, whole, on the CPU."""
    from deepspeed.utils import safe_get_full_fp32_param

    return {name: safe_get_full_fp32_param(p).cpu().contiguous() for name, p in parameters.items()}


def whole_moments(parameters: dict[str, Tensor], optimizer: Any) -> dict[str, Tensor]:
    """`name/moment` → tensor, as `trainstate` stores them; empty before the first step."""
    from deepspeed.utils import safe_get_full_optimizer_state

    states = list(optimizer.optimizer.state.values())
    if not states:
        return {}
    step = {f"{name}/step": states[0]["step"].detach().cpu().clone() for name in parameters}
    moments = {
        f"{name}/{moment}": safe_get_full_optimizer_state(p, moment).cpu().contiguous()
        for name, p in parameters.items()
        for moment in MOMENTS
    }
    return step | moments


def put_moments(parameters: dict[str, Tensor], optimizer: Any, moments: dict[str, Tensor]) -> None:
    """Put `name/moment` tensors back, before the first step; each process takes its part of them."""
    from deepspeed.utils import lazy_init_hp_params_optimizer_state, safe_set_full_optimizer_state

    step = next(moments[f"{name}/step"] for name in parameters)
    for flat in _flat(optimizer):
        optimizer.optimizer.state[flat] = {"step": step.clone()} | {m: torch.zeros_like(flat) for m in MOMENTS}
    if hasattr(optimizer, "bit16_groups"):
        for group, flat in zip(optimizer.bit16_groups, _flat(optimizer), strict=True):
            lazy_init_hp_params_optimizer_state(group, flat, optimizer.optimizer.state)
    for name, p in parameters.items():
        for moment in MOMENTS:
            value = moments[f"{name}/{moment}"].to(p.device)
            if is_divided(p):
                _put_part(p, value, moment)
            else:
                safe_set_full_optimizer_state(p, value, moment)


def _flat(optimizer: Any) -> list[Tensor]:
    """The flat float32 tensors that the inner optimizer steps on; a process has its part of each."""
    if hasattr(optimizer, "bit16_groups"):
        return list(optimizer.single_partition_of_fp32_groups)
    return list(optimizer.fp32_partitioned_groups_flat)


def _put_part(parameter: Any, value: Tensor, moment: str) -> None:
    """Stage 3 pads a parameter to equal parts; its function for whole tensors (0.19) does not reach the last one."""
    from deepspeed.utils import safe_set_local_optimizer_state

    size, rank = parameter.ds_tensor.numel(), torch.distributed.get_rank(parameter.ds_process_group)
    mine = value.new_zeros(size)
    part = value.flatten()[rank * size : (rank + 1) * size]
    mine[: len(part)] = part
    safe_set_local_optimizer_state(parameter, mine, moment)

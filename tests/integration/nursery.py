"""Run as a program: imports all that training needs once, then forks a process for every run that it is asked for.

An order is a line of JSON on standard input: {"words", "processes", "port", "split", "zero", "said"}. It answers with
the numbers of the processes, and when all have ended with their exit codes. What they write goes to the files
`<said>.<rank>`. A process that hangs ends by itself after `PATIENCE` seconds.
"""

import faulthandler
import json
import os
import sys

import accelerate.state
import matplotlib.backends.backend_svg  # noqa: F401
import matplotlib.figure  # noqa: F401
import peft  # noqa: F401
import torch
import torch.distributed
import torch.distributed.fsdp  # noqa: F401
import transformers.models.qwen2.modeling_qwen2  # noqa: F401
from accelerate.utils import DistributedType

import unmask.adapt  # noqa: F401
from unmask.cli import main

PATIENCE = 60
SPLIT = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
}


def split_on_cpu() -> None:
    """accelerate takes FSDP on GPUs only: let it think that there are some; all else it does as always."""
    os.environ.update(SPLIT)
    accelerate.state.PartialState(cpu=True)
    accelerate.state.PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def born(order: dict, rank: int) -> int:
    """Fork one process of a run."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        for number in (1, 2):
            os.dup2(os.open(f"{order['said']}.{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        if order["processes"] > 1:
            join = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": order["port"]}
            join |= {"WORLD_SIZE": order["processes"], "LOCAL_WORLD_SIZE": order["processes"]}
            os.environ.update({name: str(value) for name, value in join.items()})
        if order["split"]:
            split_on_cpu()
        if order["zero"]:
            os.environ.update(ACCELERATE_USE_DEEPSPEED="true", ACCELERATE_DEEPSPEED_ZERO_STAGE=str(order["zero"]))
        code = main(order["words"])
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        wanted = json.loads(line)
        pids = [born(wanted, rank) for rank in range(wanted["processes"])]
        print(json.dumps(pids), flush=True)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]), flush=True)

"""What this machine can do, what is missing, and whether a model fits."""

import argparse
import importlib.metadata
import os
import platform
from collections.abc import Iterator

EXAMPLES = """examples:
  unmask doctor
  unmask doctor --model HuggingFaceTB/SmolLM2-135M-Instruct"""

CORE = ("torch", "transformers", "safetensors", "gguf")
PACKAGES = dict.fromkeys(CORE) | {"peft": "train", "accelerate": "train"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="M", help="also tell whether this model can be used here")


def run(args: argparse.Namespace) -> int:
    """Print the findings; a model that cannot be used is an error, with its reason."""
    for line in _machine():
        print(line)
    for line in _packages():
        print(line)
    print(f"demo base       {_demo_base()}")
    if args.model is not None:
        for line in _model(args.model):
            print(line)
    return 0


def _machine() -> Iterator[str]:
    import torch

    from unmask.model.files import available_memory

    memory = available_memory(torch.device("cpu"))
    yield f"python          {platform.python_version()} on {platform.system()} {platform.machine()}"
    yield f"cores           {len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()}"
    yield f"threads         {torch.get_num_threads()}"
    yield f"memory free     {'unknown' if memory is None else f'{memory / 1e9:.1f} GB'}"
    for n in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(n)
        yield f"gpu {n}           {torch.cuda.get_device_name(n)}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free"
    if not torch.cuda.is_available():
        yield "gpu             none"
    yield f"native backbone {_kernel()}"


def _kernel() -> str:
    """Whether the kernel of the native backbone can be had; compiles it where it has not been."""
    from unmask.model.native.build import NoKernel, library

    try:
        library(lambda line: None)
    except NoKernel as e:
        return f"no: {e}; the universal one runs instead, slower"
    return "ready"


def _packages() -> Iterator[str]:
    for name, extra in PACKAGES.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = "missing: pip install " + (f"'unmask[{extra}]'" if extra else name)
        yield f"{name:<15} {found}"


def _demo_base() -> str:
    from unmask.model import package, sources

    if (sources.home() / "converted" / sources.SMOLLM2_SHA256[:16] / "config.json").is_file():
        return "ready"
    if package.installed() is not None:
        return "installed, converted on first use"
    return f"fetched on first use, or: {package.INSTALL}"


def _model(ref: str) -> Iterator[str]:
    import torch

    from unmask.model import adapters, checkpoint, files, hf, sources

    path = sources.locate(ref)
    about = adapters.about(path) if adapters.is_adapter(path) else {}
    base = sources.locate(checkpoint.base_of(about, path)) if about else path
    config, _ = hf.read_config(base)
    weights = files.inspect_weights(base)
    yield f"model           {ref}: {config.model_type}, {weights.values / 1e6:.1f}M values in {_name(weights.dtype)}"
    if about:
        yield f"adapter on      {about['base']}"
    held = hf.held_as(weights.dtype, torch.device("cpu"))
    hf.check_fits(weights, held, torch.device("cpu"), base)
    yield f"fits            yes, {weights.values * held.itemsize / 1e9:.2f} GB of weights"


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")

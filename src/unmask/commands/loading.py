"""The flags that say which model to load and how."""

import argparse
from dataclasses import asdict, dataclass
from typing import Any, Literal

from unmask.config import option
from unmask.options import add_flags, given, read


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Which model, and how it is loaded. Light: nothing is imported before `load_model` is called."""

    model: str = option("demo", help="demo, a directory, a hub id, or a .gguf file", metavar="M")
    mask_id: int | None = option(
        None,
        help="mask token of a checkpoint that does not state its own",
        check=lambda v: v >= 0,
        allowed="0 or more",
        metavar="N",
    )
    dtype: Literal["fp32", "bf16", "fp16", "int8"] | None = option(
        None, help="number type; int8 holds weights in bytes; default: the checkpoint's own"
    )
    backbone: Literal["auto", "native", "universal"] = option(
        "auto", help="the network's implementation; native where it can run the model"
    )
    device: str = option("auto", help="auto takes a GPU where there is one", metavar="auto|cpu|cuda")
    batch_size: int = option(
        8, help="prompts decoded together", check=lambda v: 1 <= v <= 65_536, allowed="from 1 to 65,536", metavar="N"
    )


def add_loading(parser: argparse.ArgumentParser) -> None:
    add_flags(parser.add_argument_group("model"), Loading)


def load_model(args: argparse.Namespace) -> Any:
    """The `Model` that the flags ask for."""
    how = loading(args)
    from unmask.api import load

    return load(**how)


def loading(args: argparse.Namespace) -> dict[str, Any]:
    """The flags as the arguments of `api.load`."""
    chosen = given(args, Loading)
    wanted = asdict(read(Loading, chosen, flags=chosen))
    return {"ref": wanted.pop("model")} | wanted

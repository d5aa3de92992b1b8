"""Turn a pretrained autoregressive language model into a block-diffusion one, and decode it in three modes.

    model = unmask.load("demo")
    for event in model.stream("Why is the sky blue?", mode="verified"):
        ...
    answers = model.generate(["One question", "Another"])
    unmask.adapt("recipe.toml")

Names are imported when they are first used, so `import unmask` is light.
"""

import importlib
import sys
import types
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "load": "unmask.api",
    "Model": "unmask.api",
    "adapt": "unmask.api",
    "Answer": "unmask.events",
    "Committed": "unmask.events",
    "Finished": "unmask.events",
    "Provisional": "unmask.events",
    "BlockSpec": "unmask.config",
    "Decoding": "unmask.config",
    "UnmaskError": "unmask.errors",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'unmask' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(types.ModuleType):
    """Keeps `unmask.adapt` the function: importing a submodule would otherwise put the module in its place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

"""What `unmask bench` is asked to measure."""

from dataclasses import dataclass
from typing import Literal

from unmask.config import check_fields, option
from unmask.errors import ConfigError

WORKLOADS = ("math", "code", "chat", "essay")
MODES = ("ar", "threshold", "verified")
PEERS = ("transformers", "llama.cpp", "universal", "none")
ALLOWED = {"workload": WORKLOADS, "modes": MODES, "against": PEERS}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Lists are written with commas."""

    workload: str = option("math,code,chat,essay", help="prompts to answer", metavar="A,B")
    batch: str = option("1,4,16", help="batch sizes", metavar="N,M")
    modes: str = option("ar,threshold,verified", help="modes; those the model cannot are left out", metavar="A,B")
    thresholds: str = option("0.5,0.7,0.9", help="thresholds of mode threshold", metavar="A,B")
    against: str = option(
        "transformers,universal", help=f"peers: {', '.join(PEERS)} (llama.cpp needs --gguf)", metavar="A,B"
    )
    positions: str = option("1,8,32,128", help="new positions of a forward", metavar="N,M")
    context: str = option("128,512,2048,8192", help="context lengths", metavar="N,M")
    prefix: int = option(512, help="positions before a timed forward", check=lambda v: v >= 1, allowed="at least 1")
    max_new_tokens: int = option(48, help="tokens of an answer", check=lambda v: v >= 2, allowed="at least 2")
    rounds: int = option(7, help="repetitions of a timed forward", check=lambda v: v >= 1, allowed="at least 1")
    gguf: str | None = option(None, help="file for llama.cpp (llama-cpp-python must be installed)", metavar="FILE")
    training: bool = option(False, help="measure training on a plain base instead: our layout beside the published one")
    data: tuple[str, ...] = option((), help="with --training: JSONL files of training rows; else random tokens")
    rows: int = option(8, help="with --training: rows of a forward", check=lambda v: v >= 1, allowed="at least 1")
    quick: bool = option(False, help="few repetitions and short answers: a look, not a measurement")

    def __post_init__(self) -> None:
        check_fields(self)
        self.names("workload"), self.names("modes"), self.names("against")
        self.shares("thresholds"), self.numbers("batch"), self.numbers("positions"), self.numbers("context")
        if "llama.cpp" in self.against and self.gguf is None:
            raise ConfigError("against names llama.cpp, which needs the same model as a file: --gguf FILE")

    def names(self, field: Literal["workload", "modes", "against"]) -> list[str]:
        """The values of a list of names, each once."""
        allowed = ALLOWED[field]
        found = list(dict.fromkeys(part.strip() for part in getattr(self, field).split(",") if part.strip()))
        wrong = next((name for name in found if name not in allowed), None)
        if wrong is not None or not found:
            raise ConfigError(f"{field} is '{getattr(self, field)}'; allowed: {', '.join(allowed)}, with commas")
        return found

    def numbers(self, field: Literal["batch", "positions", "context"]) -> list[int]:
        """The values of a list of whole numbers, ascending."""
        parts = [part.strip() for part in getattr(self, field).split(",") if part.strip()]
        if not parts or not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise ConfigError(f"{field} is '{getattr(self, field)}'; allowed: whole numbers above 0, with commas")
        return sorted({int(part) for part in parts})

    def shares(self, field: Literal["thresholds"]) -> list[float]:
        """The values of a list of numbers above 0 and up to 1, ascending."""
        try:
            found = sorted({float(part) for part in getattr(self, field).split(",") if part.strip()})
        except ValueError:
            found = []
        if not found or not all(0 < value <= 1 for value in found):
            raise ConfigError(f"{field} is '{getattr(self, field)}'; allowed: numbers above 0 and up to 1, with commas")
        return found

"""What `unmask synthesize` is asked to write."""

from dataclasses import dataclass
from typing import Any

from unmask.config import Decoding, check_fields, option
from unmask.errors import ConfigError


def _positive(value: int) -> bool:
    return value >= 1


def _up_to(most: int) -> dict[str, Any]:
    """A whole number from 1 to what one run can hold."""
    return {"check": lambda value: 1 <= value <= most, "allowed": f"from 1 to {most:,}", "metavar": "N"}


def _like(name: str, default: Any, help: str) -> Any:
    """A field that allows what the field of `Decoding` of that name allows."""
    about = Decoding.__dataclass_fields__[name].metadata
    return option(default, help=help, check=about["check"], allowed=about["allowed"], metavar=about["metavar"])


@dataclass(frozen=True, kw_only=True)
class Synthesis:
    """Prompts are read, or made where `make` is given. `seed` and a prompt's number decide what is sampled."""

    max_new_tokens: int = _like("max_new_tokens", 256, "length limit of an answer; a longer one is cut and marked so")
    temperature: float = _like("temperature", 0.0, "of the answers; 0 is greedy, the base's own first choice")
    top_p: float = _like("top_p", 1.0, "answers: sample from the smallest set of tokens with this much probability")
    seed: int = option(0, help="decides, with a prompt's number, what is sampled")
    limit: int | None = option(
        None, help="take only the first N prompts", check=_positive, allowed="at least 1", metavar="N"
    )
    exclude: tuple[str, ...] = option(
        (), help="files of evaluation texts; a prompt that shares 13 words in a row with one is dropped", metavar="F"
    )
    make: int | None = option(
        None,
        help="sample N prompts from the model, which completes an empty user turn, instead of reading them",
        **_up_to(10_000_000),
    )
    make_temperature: float = option(
        1.0,
        help="of the prompts that are made",
        check=lambda v: 1e-5 <= v <= 100,
        allowed="above 0, at most 100: at 0 all of them would be the same",
        metavar="X",
    )
    make_top_p: float = _like("top_p", 1.0, "made prompts: sample from the smallest set with this much probability")
    min_prompt_tokens: int = option(
        4, help="a made prompt that is shorter is dropped", check=_positive, allowed="at least 1", metavar="N"
    )
    max_prompt_tokens: int = option(
        256,
        help="a made prompt that does not end within so many tokens is dropped",
        check=_positive,
        allowed="at least 1",
        metavar="N",
    )
    max_repeated: float = option(
        0.2,
        help="a made prompt is dropped where a larger share of its 4-grams occurred before in it",
        check=lambda v: 0 <= v <= 1,
        allowed="from 0 to 1",
        metavar="X",
    )
    workers: int = option(
        1,
        help="processes that answer, spread by Ray where more than one",
        **_up_to(10_000),
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.make is not None and self.limit is not None:
            raise ConfigError("limit is for prompts that are read; make alone says how many are made")
        if self.make is not None and self.min_prompt_tokens >= self.max_prompt_tokens:
            raise ConfigError(
                f"min_prompt_tokens is {self.min_prompt_tokens} but max_prompt_tokens is {self.max_prompt_tokens}, "
                "so no prompt could be kept; lower the first or raise the second"
            )

    def answers(self) -> Decoding:
        """How prompts are answered; each with a seed of its own."""
        return Decoding(mode="ar", max_new_tokens=self.max_new_tokens, temperature=self.temperature, top_p=self.top_p)

    def prompts(self, stop_ids: tuple[int, ...]) -> Decoding:
        """How prompts are made, up to one of `stop_ids`."""
        return Decoding(
            mode="ar",
            max_new_tokens=self.max_prompt_tokens,
            temperature=self.make_temperature,
            top_p=self.make_top_p,
            stop_ids=stop_ids,
        )

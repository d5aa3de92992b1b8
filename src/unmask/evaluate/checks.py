"""What would make a run fail, or its numbers mean nothing, is refused before any work."""

from collections.abc import Mapping, Sequence
from typing import Any

from unmask.errors import ConfigError, RequestError
from unmask.evaluate.harness import decoding_of
from unmask.evaluate.outcomes import Contender
from unmask.evaluate.settings import Evaluate
from unmask.evaluate.tasks import Loaded
from unmask.model.checkpoint import Checkpoint
from unmask.resolve import resolve


def check_settings(
    parts: Sequence[tuple[Contender, str]], loaded: Loaded, models: Mapping[str, Checkpoint], seed: int
) -> None:
    """ConfigError for a setting that a contender's model refuses on a task."""
    for contender, task in parts:
        checkpoint, made = models[contender.model], loaded.tasks[task]
        wanted = made.config.generation_kwargs if made.OUTPUT_TYPE == "generate_until" else None
        try:
            decoding = decoding_of({**contender.decoding, "mode": contender.mode}, wanted or {}, seed)
            resolve(decoding, checkpoint.spec, checkpoint.stop_ids)
        except (ConfigError, RequestError) as error:
            raise ConfigError(f"contender '{contender.name}' on {task}: {error}") from None
        if wanted is not None and decoding.max_new_tokens >= checkpoint.positions:
            raise ConfigError(
                f"max_new_tokens is {decoding.max_new_tokens} on {task}, but {checkpoint.ref} has "
                f"{checkpoint.positions} positions; give a lower --max-new-tokens"
            )


def check_prompts(loaded: Loaded, models: Mapping[str, Checkpoint], settings: Evaluate) -> None:
    """ConfigError where the models would not be asked the same; a note where their chat templates differ."""
    templates = {ref: _template(checkpoint) for ref, checkpoint in models.items()}
    without = [ref for ref, template in templates.items() if not template]
    if settings.chat == "yes" and without:
        raise ConfigError(f"chat is 'yes', but {without[0]} has no chat template; use auto or no")
    chatting = [task for task in loaded.tasks if wants_chat(task, loaded, settings)]
    if chatting and without and len(without) < len(models):
        having = next(ref for ref in models if ref not in without)
        raise ConfigError(
            f"{without[0]} has no chat template and {having} has one, so {chatting[0]} would ask them differently; "
            "give --chat no"
        )
    if chatting and len(set(templates.values())) > 1:
        loaded.notes["chat template"] = "not the same for all models: their prompts differ"


def wants_chat(task: str, loaded: Loaded, settings: Evaluate) -> bool:
    """Whether a task's prompts go through the chat template, where there is one."""
    return settings.chat == "yes" or (settings.chat == "auto" and loaded.chat[task])


def uses_chat(task: str, loaded: Loaded, settings: Evaluate, checkpoint: Checkpoint) -> bool:
    return bool(_template(checkpoint)) and wants_chat(task, loaded, settings)


def check_judged(judged: Sequence[str], parts: Sequence[tuple[Contender, str]], loaded: Loaded) -> None:
    """ConfigError where a gate or a recommendation would have nothing to judge. judged: their flags."""
    if judged and not any(made.OUTPUT_TYPE == "generate_until" for made in loaded.tasks.values()):
        raise ConfigError(
            f"{judged[0]} needs a task in which text is written, but there is only {', '.join(loaded.tasks)}"
        )
    modes = {contender.mode for contender, _ in parts if contender.role == "model" and not contender.swept}
    if "--gate" in judged and modes == {"ar"}:
        raise ConfigError("--gate compares modes with mode ar, but only mode ar is run; give --modes ar,threshold")


def _template(checkpoint: Checkpoint) -> Any:
    return getattr(checkpoint.tokenizer, "chat_template", None)

"""The errors of `unmask`: each text is one line for the user, names the value and says what to do.

    UnmaskError
    ├── ConfigError            a flag, a recipe key or a combination of them
    ├── UnsupportedModelError  a model family that could not be decoded or trained correctly
    ├── CheckpointError        files of a model or of a training run
    ├── DataError              a row of training text or of prompts (file, line, field)
    ├── RequestError           one request (field, value, limit); ModelError where the network broke on it
    ├── CapacityError          too much work at once
    ├── MissingExtraError      an optional dependency that is not installed
    └── ToldError              another process of the same run says what is wrong

`assert` is for our own invariants, never for what a user gave.
"""


class UnmaskError(Exception):
    """Root of all errors whose text is meant for the user."""


class ConfigError(UnmaskError):
    """A flag, a recipe key, or a combination of them, is not allowed."""


class UnsupportedModelError(UnmaskError):
    """The model family cannot be handled correctly; the text gives the reason."""


class CheckpointError(UnmaskError):
    """A file of a model or of a training run is missing, damaged or unsafe."""


class DataError(UnmaskError):
    """A row of a data file cannot be used; names file, line and field."""

    def __init__(self, problem: str, *, file: object = None, line: int | None = None, field: str | None = None) -> None:
        where = "".join(
            part
            for part in (
                f"{file}" if file is not None else "",
                f", line {line}" if line is not None else "",
                f", field '{field}'" if field is not None else "",
            )
        )
        super().__init__(f"{where.lstrip(', ')}: {problem}" if where else problem)
        self.problem, self.file, self.line, self.field = problem, file, line, field


class RequestError(UnmaskError):
    """One request cannot be served as asked; names field, value and limit."""

    def __init__(self, problem: str, *, field: str | None = None, value: object = None, limit: object = None) -> None:
        super().__init__(problem)
        self.field, self.value, self.limit = field, value, limit


class ModelError(RequestError):
    """The network broke on this request; the request itself may be good."""


class CapacityError(UnmaskError):
    """More work than the machine or the queue can take now."""


class MissingExtraError(UnmaskError):
    """An optional dependency is missing."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs '{package}', which is not installed: pip install 'unmask[{extra}]'")


class ToldError(UnmaskError):
    """Another process of the same run has failed and says why; this one ends without a line of its own."""

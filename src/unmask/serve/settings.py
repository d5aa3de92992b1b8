"""What a server is told when it starts; the fields are its flags."""

import os
from dataclasses import dataclass

from unmask.config import check_fields, option, positive
from unmask.errors import ConfigError

KEY_VARIABLE = "UNMASK_API_KEY"


def _seconds(value: float) -> bool:
    return 0 < value <= 86_400


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Address, limits and names of a server."""

    host: str = option(
        "127.0.0.1", help="address to listen on; others can reach it only where you name one", metavar="H"
    )
    port: int = option(
        8000, help="port; 0 takes a free one", check=lambda v: 0 <= v <= 65535, allowed="from 0 to 65535", metavar="P"
    )
    api_key: str | None = option(
        None,
        help=f"clients must send it as a bearer token; or set {KEY_VARIABLE}",
        check=bool,
        allowed="not empty",
        metavar="K",
    )
    name: str | None = option(None, help="the name that clients call the model by (default: the reference's last part)")
    cors: tuple[str, ...] = option((), help="origins whose pages may call the API; * for any", metavar="ORIGIN")
    context: int = option(
        2048,
        help="prompt and answer together, in tokens; each of the batch's rows holds so many",
        check=lambda v: v >= 2,
        allowed="at least 2",
    )
    queue: int = option(
        64, help="requests that may wait for a row; more get status 429", check=lambda v: v >= 0, allowed="0 or more"
    )
    max_tokens: int = option(
        1024, help="length limit of an answer whose request gives none", check=positive, allowed="at least 1"
    )
    most_choices: int = option(
        8, help="the largest n of a request", check=lambda v: 1 <= v <= 128, allowed="from 1 to 128"
    )
    max_body: float = option(
        1.0,
        help="largest body of a request in megabytes",
        check=lambda v: 0 < v <= 1000,
        allowed="above 0, at most 1000",
    )
    timeout: float = option(
        600.0,
        help="seconds after which a request is ended with an error",
        check=_seconds,
        allowed="above 0, at most 86400",
    )
    slow_reader: float = option(
        30.0,
        help="seconds that the server waits for a client: for its request, or for it to read on",
        check=_seconds,
        allowed="above 0, at most 86400",
    )
    grace: float = option(
        20.0,
        help="seconds that running answers get when the server is told to stop",
        check=_seconds,
        allowed="above 0, at most 86400",
    )
    replicas: int = option(
        1,
        help="engines behind this address, spread by Ray Serve over processors, GPUs and the nodes of a cluster",
        check=lambda v: 1 <= v <= 1000,
        allowed="from 1 to 1000",
    )
    prefill: int = option(
        256,
        help="a longer prompt is fed in pieces of so many tokens, so that other answers go on meanwhile",
        check=positive,
        allowed="at least 1",
    )

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def key(self) -> str | None:
        """The API key: as given, else from the environment; outer blanks are no part of it, no header carries them."""
        return (self.api_key or os.environ.get(KEY_VARIABLE) or "").strip() or None


def check_exposed(settings: Serving) -> str:
    """A warning where anybody in the network may use the server; "" else. ConfigError for a key no header can carry."""
    if settings.key is not None and not (settings.key.isascii() and settings.key.isprintable()):
        raise ConfigError("the API key holds characters that no HTTP header can carry; allowed: printable ASCII")
    if settings.host in ("127.0.0.1", "localhost", "::1") or settings.key is not None:
        return ""
    return f"listening on {settings.host} without an API key: whoever reaches it can use it; --api-key K asks for one"

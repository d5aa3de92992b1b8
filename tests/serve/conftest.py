import pytest

pytest.importorskip("fastapi", reason="unmask[serve] is not installed")

from serving import Spelling, model_of, running, tiny  # noqa: E402


@pytest.fixture(scope="module")
def served():
    """A server over a tiny random network."""
    with running(tiny()) as server:
        yield server


@pytest.fixture
def spelling():
    """A server over a network that spells the alphabet; `backbone` can be told to wait or to fail."""
    backbone = Spelling()
    with running(model_of(backbone, rows=2), queue=2) as server:
        server.backbone = backbone
        yield server

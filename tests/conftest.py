import os

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
torch.set_num_threads(1)

from tiny import MASK, byte_tokenizer, tiny_model  # noqa: E402

from unmask.model.native.build import library  # noqa: E402
from unmask.model.sources import home  # noqa: E402
from unmask.model.universal import UniversalBackbone  # noqa: E402

library(lambda line: None)  # compiled before any test looks at what is printed


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch, tmp_path):
    """What `unmask bench` has measured on this machine is not seen, unless a test has a home of its own."""
    monkeypatch.setattr(
        "unmask.model.speed.home", lambda: home() if "UNMASK_HOME" in os.environ else tmp_path / "nowhere"
    )


@pytest.fixture(scope="session")
def model():
    return tiny_model()


@pytest.fixture(scope="session")
def backbone(model):
    return UniversalBackbone(model, mask_id=MASK)


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture
def empty_hub(tmp_path, monkeypatch):
    """The hub's cache has nothing in it, whatever this machine has fetched before."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

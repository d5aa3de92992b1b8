import os

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
torch.set_num_threads(1)

from tiny import MASK, byte_tokenizer, tiny_model  # noqa: E402

from unmask.model.universal import UniversalBackbone  # noqa: E402


@pytest.fixture(scope="session")
def model():
    return tiny_model()


@pytest.fixture(scope="session")
def backbone(model):
    return UniversalBackbone(model, mask_id=MASK)


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()

"""The base and the rows that trainings share."""

import pytest
from training import many_rows, save_base, save_rows


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return save_rows(tmp_path_factory.mktemp("data") / "rows.jsonl", many_rows())

"""Requests of every form that the OpenAPI document allows, and many that it does not: no answer is a status 500."""

import pytest

schemathesis = pytest.importorskip("schemathesis")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from serving import running, tiny  # noqa: E402


@pytest.fixture(scope="module")
def document():
    with running(tiny(rows=8), max_tokens=8, context=64, queue=64) as server:
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/models/{name}", "/health", "/ready", "/metrics"]
)
def test_no_request_is_a_fault(document, path):
    operation = document[path]["POST" if "completions" in path else "GET"]

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(case=operation.as_strategy())
    def answered(case):
        if isinstance(case.body, dict):  # most would end at a name that is not served
            case.body["model"] = "tiny"
        response = case.call(timeout=20)
        assert response.status_code < 500, response.text
        if response.status_code >= 400:
            error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"} and "\n" not in error["message"]
        elif "text/event-stream" not in response.headers["content-type"][0]:
            case.validate_response(response)

    answered()

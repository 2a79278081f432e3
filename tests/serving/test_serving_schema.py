"""Schemathesis reads the OpenAPI page and looks for a request that the server has no answer to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from serving_parts import Parts


@pytest.fixture(scope="module")
def api_schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[schemathesis.BaseSchema]:
    """The schema of a server on a real socket, in a thread of its own."""
    with Parts(feedback=tmp_path_factory.mktemp("kept")).server_in_thread() as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


def test_no_server_error(api_schema):
    asked = set()
    for found in api_schema.get_all_operations():
        operation = found.ok()

        @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(operation.as_strategy())
        def check(case: schemathesis.Case) -> None:
            response = case.call(timeout=20)
            assert response.status_code < 500, f"{case.method} {case.path}: {response.text}"

        check()
        asked.add(operation.path)
    assert asked >= {"/v1/chat/completions", "/v1/feedback", "/v1/models", "/healthz", "/readyz", "/metrics"}

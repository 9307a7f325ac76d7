"""REST against requests forged from its own OpenAPI document: our answers only, and no crash."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from kit.rest_server import ERROR_FIELDS, Running, running

ENDLESS = ("/v1/events",)
"""Answers that do not end by themselves are left to other tests."""


EXAMPLES = 12
"""Of each operation: some seconds in all. The seed is fixed; raise it to look for more."""

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def rest() -> Iterator[Running]:
    """A server with something in it, so that some of the forged names exist."""
    with running() as made:
        columns = [{"name": "k", "type": "int64"}]
        made.http.post("/v1/streams", json={"name": "0", "schema": columns})
        made.http.post("/v1/queries", json={"name": "0", "sql": "SELECT 1"})
        yield made


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_forged_requests_get_answers_that_the_document_promises(
    rest: Running, mode: GenerationMode
) -> None:
    """Every status is in the document, every body fits it, and every error has our shape."""
    url = f"http://127.0.0.1:{rest.server.port}/openapi.json"
    for found in schemathesis.openapi.from_url(url).get_all_operations():
        operation = found.ok()
        if operation.path not in ENDLESS:
            forge(operation, mode)


def forge(operation: schemathesis.APIOperation, mode: GenerationMode) -> None:
    """Send some requests of one operation."""

    @seed(1)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: schemathesis.Case) -> None:
        answer = case.call(timeout=30)
        case.validate_response(answer, checks=CHECKS)
        if answer.status_code >= 400:
            assert answer.json().keys() >= ERROR_FIELDS

    try:
        send()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # nothing can be wrong where nothing is asked for

"""REST against requests forged from its own OpenAPI document: our answers only, and no crash."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from dovetail_manager.server import ManagerServer, ManagerSettings
from dovetail_proto.messages import Heard
from kit.rest_server import ERROR_FIELDS, running
from kit.scripted_processor import ScriptedProcessor

ENDLESS = ("/v1/events",)
"""Answers that do not end by themselves are left to other tests."""


EXAMPLES = 6
"""Of each operation: some seconds in all. The seed is fixed; raise it to look for more."""

CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def fill(http: httpx.Client) -> None:
    """Put something in, so that some of the forged names exist."""
    for name in ("0", "1"):
        columns = [{"name": "k", "type": "int64"}]
        assert http.post("/v1/streams", json={"name": name, "schema": columns}).is_success
    sql = 'SELECT a.k FROM "0" a JOIN "1" b ON a.k = b.k'
    assert http.post("/v1/queries", json={"name": "0", "sql": sql}).is_success


@pytest.fixture(scope="module")
def standing_in() -> Iterator[str]:
    """A manager in memory, whose verbs do what they are asked."""
    with running() as made:
        fill(made.http)
        yield str(made.http.base_url)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real manager, with a processor that only talks."""
    folder = tmp_path_factory.mktemp("forged")
    settings = ManagerSettings(
        store=str(folder / "manager.db"), rest="127.0.0.1:0", spill_root=str(folder / "spill")
    )
    with ManagerServer(settings) as manager:
        processor = ScriptedProcessor(manager.address, "0")
        try:
            assert processor.wait(Heard).member
            with httpx.Client(base_url=f"http://{manager.rest_address}", timeout=60) as http:
                fill(http)
            yield f"http://{manager.rest_address}"
        finally:
            processor.close()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("manager", ["standing_in", "real"])
def test_forged_requests_get_answers_that_the_document_promises(
    request: pytest.FixtureRequest, manager: str, mode: GenerationMode
) -> None:
    """Every status is in the document, every body fits it, and every error has our shape."""
    url = f"{request.getfixturevalue(manager)}/openapi.json"
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
        answer = case.call(timeout=120)
        case.validate_response(answer, checks=CHECKS)
        assert answer.status_code < 500 or answer.status_code == 503, answer.text
        if answer.status_code >= 400:
            assert answer.json().keys() >= ERROR_FIELDS

    try:
        send()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # nothing can be wrong where nothing is asked for

"""What REST takes and gives has the fields of the plain types, which are written once."""

from __future__ import annotations

import dataclasses

import pytest

from dovetail_manager.admin.rest import answers, bodies
from dovetail_proto import admin as a

BODIES = {
    bodies.NewQuery: a.Submit,
    bodies.MoveBody: a.MoveGroups,
    bodies.PinBody: a.Pin,
    bodies.RebalanceBody: a.Rebalance,
    bodies.PolicyBody: a.SetPolicy,
    bodies.CleanupBody: a.StartCleanup,
}


@pytest.mark.parametrize("body", BODIES)
def test_a_body_has_the_fields_and_defaults_of_its_request(body: type[bodies.Request]) -> None:
    """Less the query, which is in the path; a body may default what other callers must say."""
    plain = {f.name: f.default for f in dataclasses.fields(BODIES[body]) if f.name != "query"}
    assert body.model_fields.keys() == plain.keys()
    for name, default in plain.items():
        field = body.model_fields[name]
        if default is not dataclasses.MISSING:
            expected = list(default) if isinstance(default, tuple) else default
            assert field.get_default() == expected, name


def test_an_answer_has_the_fields_and_notes_of_its_plain_type() -> None:
    """Schemas are shown twice, checksums as text; everything else is as it is."""
    log = answers.Query.model_json_schema()["$defs"]["Log"]
    assert list(log["properties"]) == [f.name for f in dataclasses.fields(a.LogStatus)]
    assert log["description"] == a.LogStatus.__doc__
    assert log["properties"]["rows"]["description"].endswith("0 until then")
    shown = answers.Query.model_json_schema(mode="serialization")["properties"]
    assert shown.keys() - {f.name for f in dataclasses.fields(a.QueryStatus)} == {"arrow_schema"}
    assert shown["checksum"]["type"] == "string"

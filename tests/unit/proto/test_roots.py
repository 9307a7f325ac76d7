"""Roots: what lies below them may be used, whatever way the path takes to get there."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail_proto.errors import ConfigError, InputError, without_credentials
from dovetail_proto.roots import ANYWHERE, Roots


def allowed(roots: Roots, place: str) -> bool:
    """Whether `place` may be used."""
    try:
        roots.check("path", place)
    except ConfigError:
        return False
    return True


def test_folders_are_compared_after_links_and_detours_are_resolved(tmp_path: Path) -> None:
    """A root may itself be reached by a link; a name that only begins like a root is another."""
    root = tmp_path / "data"
    (root / "day").mkdir(parents=True)
    (tmp_path / "database").mkdir()
    (root / "out").symlink_to(tmp_path / "database")
    (tmp_path / "alias").symlink_to(root)
    roots = Roots((str(tmp_path / "alias"),))
    inside = ["data", "data/day", "data/day/../new/file", "alias/day", "database/../data/x"]
    outside = ["database", "data/out", "data/out/x", "data/../database", "data/day/../../x", "."]
    assert [p for p in inside if not allowed(roots, str(tmp_path / p))] == []
    assert [p for p in outside if allowed(roots, str(tmp_path / p))] == []
    assert allowed(roots, f"file://{root}/day/a%20file")
    assert not allowed(roots, f"file://{root}/..%2fdatabase")
    assert not allowed(roots, f"file://elsewhere{root}/day")


def test_uris_are_compared_with_their_host_and_options() -> None:
    """Credentials do not count; an option that leads to another machine does."""
    roots = Roots(("s3://lake/run?region=eu", "hdfs://name:8020"))
    for place in (
        "s3://lake/run?region=eu",
        "s3://lake/run//q/p1?region=eu",
        "s3://me:secret@lake/run/q?region=eu",
        "hdfs://name:8020/any/where",
    ):
        assert allowed(roots, place), place
    for place in (
        "s3://lake/run",
        "s3://lake/running?region=eu",
        "s3://lake/run/q?region=eu&endpoint_override=10.0.0.1",
        "s3://lake/x/../run?region=eu",
        "s3://lake/run/%2e%2e/x?region=eu",
        "s3://other/run?region=eu",
        "hdfs://name:8021/any",
        "gs://lake/run?region=eu",
        "/lake/run",
    ):
        assert not allowed(roots, place), place


def test_without_roots_nothing_may_be_named_and_anywhere_means_everything() -> None:
    """The refusal names the place, the roots and what to do."""
    assert allowed(Roots((ANYWHERE,)), "/etc/passwd")
    with pytest.raises(ConfigError, match="'/etc/passwd' is outside the roots") as refused:
        Roots(("s3://key:secret@lake", "/data")).check("path", "/etc/passwd")
    assert "s3://…@lake, /data" in refused.value.remedy
    assert "--root" in refused.value.remedy


@pytest.mark.parametrize("roots", [(ANYWHERE,), ("/data", "s3://lake")])
def test_what_is_no_clear_place_is_refused_under_any_root(roots: tuple[str, ...]) -> None:
    """File systems ignore a fragment, so places below such a URI would all be the same."""
    for place in (
        "file:///data/x#y",
        "s3://lake/x#",
        "file:///data/%00",
        "/data/\0",
        "s3://[::1/x",
    ):
        with pytest.raises(ConfigError, match=r"in it|no URI"):
            Roots(roots).check("spill", place)
    assert allowed(Roots(roots), "/data/x#y")
    assert allowed(Roots(roots), "file:///data/x%23y")


def test_no_error_shows_the_credentials_of_a_uri() -> None:
    """In user information and in options, in the middle of a sentence."""
    error = InputError(
        "s3://me:hush@lake/x?secret_key=hush&region=eu: no answer",
        remedy="see hdfs://n/x?token=hush",
    )
    assert "hush" not in str(error)
    assert "s3://…@lake/x?secret_key=…&region=eu: no answer" in str(error)
    assert without_credentials("mail me@example at http://x/y") == "mail me@example at http://x/y"

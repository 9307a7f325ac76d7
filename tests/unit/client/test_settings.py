"""The one settings model: what wins, what is refused, and what is never shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dovetail.settings import Settings, load
from dovetail_manager.adaptation.policies import POLICIES
from dovetail_manager.adaptation.snapshot import AdaptationSettings
from dovetail_proto.errors import ConfigError
from kit.cli import dovetail

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.fixture(autouse=True)
def _nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith("DOVETAIL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def write(text: str) -> None:
    """The settings file of the working folder."""
    Path("dovetail.toml").write_text(text)


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And each value says where it came from."""
    write('memory = "1MB"\nprocessors = 2\nlisten = "127.0.0.1:1"\n')
    monkeypatch.setenv("DOVETAIL_MEMORY", "2MB")
    monkeypatch.setenv("DOVETAIL_PROCESSORS", "3")
    loaded = load({"memory": "3MB", "processors": None})
    assert loaded.settings.memory == 3_000_000
    assert loaded.settings.processors == 3
    assert loaded.settings.listen == "127.0.0.1:1"
    assert loaded.origins["memory"] == "flag --memory"
    assert loaded.origins["processors"] == "environment DOVETAIL_PROCESSORS"
    assert loaded.origins["listen"] == "file dovetail.toml"
    assert loaded.origins["rest"] == "default"


def test_a_named_file_must_exist_and_wins_over_the_one_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slip in its name must not fall back to something else."""
    write("processors = 2")
    (tmp_path / "other.toml").write_text("processors = 5")
    assert load(config=Path("other.toml")).settings.processors == 5
    monkeypatch.setenv("DOVETAIL_CONFIG", "other.toml")
    assert load().settings.processors == 5
    monkeypatch.setenv("DOVETAIL_CONFIG", "gone.toml")
    with pytest.raises(ConfigError, match=r"'gone\.toml' cannot be read"):
        load()


def test_an_unknown_key_in_the_file_is_refused_with_a_guess() -> None:
    """A setting that is silently ignored is worse than none."""
    write('memroy = "1MB"')
    with pytest.raises(ConfigError, match=r"'memroy' is not a setting.*did you mean memory\?"):
        load()


def test_an_unknown_variable_is_refused_with_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is one in the environment."""
    monkeypatch.setenv("DOVETAIL_PROCESORS", "2")
    with pytest.raises(ConfigError, match=r"DOVETAIL_PROCESORS is not.*DOVETAIL_PROCESSORS\?"):
        load()


def test_variables_that_kubernetes_adds_are_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service called dovetail-manager puts these into every container."""
    monkeypatch.setenv("DOVETAIL_MANAGER_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("DOVETAIL_MANAGER_PORT_7070_TCP_ADDR", "10.0.0.1")
    assert load().settings.processors == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('memory = "12QB"', r"file dovetail.toml: memory: '12QB' is not a size"),
        ("processors = 0", r"processors: 0 is given, expected at least 1"),
        ('processors = "x"', r"processors: 'x' is given, expected a whole number"),
        ('policy = "lazy"', r"policy: 'lazy' is given, expected 'none', 'disk'"),
        ("tls_mutual = 7", r"tls_mutual: 7 is given, expected true or false"),
        ("token = 7", r"token: text"),
        ('push_fraction = "130%"', r"push_fraction: '130%' is not between 0 and 100 %"),
        ("move_interval_s = inf", r"move_interval_s: inf is given, expected a finite number"),
        ('tls_key = "k.pem"', r"tls_certificate and tls_key go together"),
        ("tls_mutual = true", r"tls_mutual needs tls_authority"),
        ('token = "a"\ntoken_file = "b"', r"token and token_file are both given"),
        ("memory = ", r"is not TOML"),
    ],
)
def test_a_wrong_value_is_refused_by_name_and_origin(text: str, said: str) -> None:
    """Whoever reads it must know where to look."""
    write(text)
    with pytest.raises(ConfigError, match=said):
        load()


def test_a_token_file_gives_the_token_and_a_closer_token_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment's token replaces the file's token_file, though both are set."""
    (tmp_path / "secret").write_text("from-file\n")
    write('token_file = "secret"')
    assert load().settings.admin_token() == "from-file"
    monkeypatch.setenv("DOVETAIL_TOKEN", "from-environment")
    loaded = load()
    assert loaded.settings.admin_token() == "from-environment"
    assert loaded.settings.security().token == "from-environment"
    assert loaded.origins["token_file"] == "default"


@pytest.mark.parametrize(("content", "said"), [(None, "cannot be read"), ("\n", "is empty")])
def test_a_token_file_without_a_token_is_refused(
    tmp_path: Path, content: str | None, said: str
) -> None:
    """An empty token would let everyone in."""
    if content is not None:
        (tmp_path / "secret").write_text(content)
    write('token_file = "secret"')
    with pytest.raises(ConfigError, match=said):
        load().settings.admin_token()


def test_config_show_hides_every_secret(tmp_path: Path) -> None:
    """Tokens, and what addresses carry to be let in."""
    environment = {
        "DOVETAIL_TOKEN": "hush-admin",
        "DOVETAIL_READ_TOKEN": "hush-read",
        "DOVETAIL_STORE": "redis://user:hush-p@ss@store:6379/0",
        "DOVETAIL_SPILL": "s3://bucket/spill?secret_key=hush-key&region=here",
    }
    done = dovetail("config", "show", "--json", environment=environment, cwd=tmp_path)
    shown = done.json["settings"]
    assert "hush" not in done.out
    assert shown["store"]["value"] == "redis://…@store:6379/0"
    assert shown["spill"]["value"] == "s3://bucket/spill?secret_key=…&region=here"
    assert shown["token"]["origin"] == "environment DOVETAIL_TOKEN"
    assert set(shown) == set(Settings.model_fields)
    table = dovetail("config", "show", environment=environment, cwd=tmp_path)
    assert table.code == 0
    assert "hush" not in table.out
    assert "move_min_fraction" in table.out


def test_the_thresholds_are_those_of_the_manager() -> None:
    """Names, defaults and policies are written twice; this holds them together."""
    assert load().settings.adaptation() == AdaptationSettings()
    for name in POLICIES:
        assert load({"policy": name}).settings.policy == name


def test_the_documentation_lists_every_setting() -> None:
    """By its name, in backticks."""
    text = (DOCS / "admin.md").read_text()
    assert [n for n in Settings.model_fields if f"`{n}`" not in text] == []

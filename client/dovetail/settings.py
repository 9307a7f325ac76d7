"""Every setting of Dovetail, once: a file, the environment and flags give values to one model.

A setting has one name everywhere: `move_interval_s` in `dovetail.toml`, `DOVETAIL_MOVE_INTERVAL_S`
in the environment, `--move-interval-s` where a command has such a flag. A flag wins over the
environment, the environment over the file, the file over the default; `load` remembers which it
was, and `dovetail config show` tells. An unknown name is refused, with a guess of the slip.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, SettingsConfigDict

from dovetail.quantities import parse_bytes, parse_share
from dovetail_proto.errors import ConfigError, without_credentials
from dovetail_proto.expectations import plain

if TYPE_CHECKING:
    from pydantic_settings import PydanticBaseSettingsSource

    from dovetail_manager.adaptation.snapshot import AdaptationSettings
    from dovetail_proto.transport import Security

FILE_NAME = "dovetail.toml"
"""Looked for in the working folder where no other file is named."""

PREFIX = "DOVETAIL_"

NOT_SETTINGS = frozenset({"DOVETAIL_CONFIG", "DOVETAIL_DEBUG"})
"""Variables that are no settings: where the file is, and whether errors show their trace."""

RIVALS = {
    "token": "token_file",
    "token_file": "token",
    "read_token": "read_token_file",
    "read_token_file": "read_token",
}
"""Two ways to say one thing: the one that is given closer to the command counts."""

_SERVICE_LINK = re.compile(r"_(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)$")
"""What Kubernetes adds to the environment for every service, ours too if it is called dovetail."""


def _size(value: Any) -> Any:
    return _read(lambda: parse_bytes(str(value), what=""))


def _size_or_none(value: Any) -> Any:
    return 0 if str(value) == "0" else _size(value)


def _share(value: Any) -> Any:
    return _read(lambda: parse_share(str(value), what=""))


def _read(parse: Any) -> Any:
    try:
        return parse()
    except ConfigError as e:
        # pydantic collects ValueErrors and says where they arose.
        raise ValueError(str(e).removeprefix(": ")) from e


def _places(value: Any) -> Any:
    """Places separated by commas, or a list; folders as whole paths."""
    places = value.split(",") if isinstance(value, str) else value
    return tuple(_place(str(p)) for p in places if p)


def _place(text: str) -> str:
    return text if "://" in text or text == "*" else os.path.abspath(text)


Places = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_places)]
Size = Annotated[int, BeforeValidator(_size)]
SizeOrNone = Annotated[int, BeforeValidator(_size_or_none)]
Share = Annotated[float, BeforeValidator(_share)]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class Settings(BaseSettings):
    """All settings, checked. Made by `load`; secrets are shown by nothing but their own getters."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True
    )

    url: str = Field("http://127.0.0.1:7071", description="where commands find the manager's REST")
    token: SecretStr | None = Field(None, description="may do everything")
    token_file: Path | None = Field(None, description="file with the token")
    read_token: SecretStr | None = Field(None, description="may only look")
    read_token_file: Path | None = Field(None, description="file with the reading token")
    store: str | None = Field(
        None, description="the manager's store: redis://… or sqlite:PATH; SQLite in data_dir if not"
    )
    listen: str = Field("127.0.0.1:7070", description="where the manager takes gRPC")
    rest: str = Field("127.0.0.1:7071", description="where the manager takes REST")
    data_dir: Path = Field(Path(".dovetail"), description="what must outlive the processes")
    spill: Annotated[str, AfterValidator(_place)] | None = Field(
        None, description="folder or URI for state on disk, for all to reach; `up`: in data_dir"
    )
    root: Places = Field(
        (), description="folders and URIs that streams, results and spill may be in"
    )
    spark_masters: str = Field(
        "local local[*]",
        description="where clean-ups may run, with blanks between; the first is their default",
    )
    memory: Size = Field(256_000_000, description="limit of each processor")
    threads: int | None = Field(
        None,
        ge=1,
        le=256,
        description="of each processor, sharing its memory; as many as it has cores, if not",
    )
    processors: int = Field(1, ge=1, le=1000, description="how many `up` starts")
    policy: Literal["none", "disk", "distributed", "lazy-disk", "active-disk"] | None = Field(
        None, description="how queries adapt; disk with one processor, lazy-disk with more"
    )
    move_below_ratio: Share = Field(0.8, description="θ_d: move when M_least / M_most is below")
    spill_above_ratio: Share = Field(
        0.8, description="θ_m: push to disk when state takes more of its memory"
    )
    force_above_rate_ratio: float = Field(
        2.0,
        ge=1,
        allow_inf_nan=False,
        description="θ_f: force a push when MaxRate / MinRate is above",
    )
    force_above_ratio: Share = Field(
        0.4, description="no push is forced where state takes less of its memory"
    )
    inactive_after_s: Seconds = Field(60.0, description="θ_t: such groups are pushed first")
    push_fraction: Share = Field(0.3, description="share of the state that one push takes")
    productivity_half_life_s: Seconds = Field(
        0.0, description="after so long a combination counts half in P_o; 0: P_o is a plain sum"
    )
    keep_results_s: Seconds = Field(
        0.0, description="how long result logs keep results, unless the query says; 0: for ever"
    )
    keep_results_bytes: SizeOrNone = Field(
        0, description="how much of each result log is kept, unless the query says; 0: all"
    )
    move_interval_s: Seconds = Field(45.0, description="time between two rounds of moves")
    move_min_fraction: Share = Field(
        0.1, description="no move below this share of the smaller limit"
    )
    heartbeat_s: float = Field(
        1.0, ge=0.05, le=60, description="time between two reports of a processor"
    )
    dead_after_s: float = Field(
        10.0, ge=0.5, le=3600, description="a processor that is silent for longer is dead"
    )
    tls_authority: Path | None = Field(None, description="PEM: who signs the others' certificates")
    tls_certificate: Path | None = Field(None, description="PEM: our own certificate")
    tls_key: Path | None = Field(None, description="PEM: its key")
    tls_mutual: bool = Field(False, description="servers ask callers for a certificate")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="what is logged"
    )
    log_format: Literal["console", "json"] = Field("console", description="how it is logged")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *_: Any,
        **__: Any,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `load` gathered: it has to know where each value came from."""
        return (init_settings,)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together; give both or none")
        if self.dead_after_s < 3 * self.heartbeat_s:
            raise ValueError("dead_after_s must be at least 3 times heartbeat_s")
        if self.tls_mutual and (self.tls_authority is None or self.tls_certificate is None):
            raise ValueError("tls_mutual needs tls_authority, tls_certificate and tls_key")
        for name in ("token", "read_token"):
            if getattr(self, name) is not None and getattr(self, f"{name}_file") is not None:
                raise ValueError(f"{name} and {name}_file are both given; keep one")
        return self

    def admin_token(self) -> str:
        """The token that may do everything; empty if none is set."""
        return _secret(self.token, self.token_file)

    def reading_token(self) -> str:
        """The token that may only look; empty if none is set."""
        return _secret(self.read_token, self.read_token_file)

    def roots(self) -> tuple[str, ...]:
        """Below which places callers may name others: `root`, spill and the data folder."""
        spill = (self.spill,) if self.spill else ()
        return (*self.root, *spill, str(self.data_dir.absolute()))

    def masters(self) -> tuple[str, ...]:
        """Where clean-ups of the cluster may run: `local`, and masters of Spark."""
        return tuple(self.spark_masters.split())

    def adaptation(self) -> AdaptationSettings:
        """The thresholds, as the manager takes them."""
        from dovetail_manager.adaptation.snapshot import AdaptationSettings

        given = {
            n: getattr(self, n)
            for n in AdaptationSettings.__slots__
            if n in type(self).model_fields
        }
        return AdaptationSettings(**given)

    def security(self) -> Security:
        """What our processes show each other: the token and the files of TLS."""
        from dovetail_proto.transport import Security

        return Security(
            token=self.admin_token(),
            authority=self.tls_authority,
            certificate=self.tls_certificate,
            key=self.tls_key,
            mutual=self.tls_mutual,
        )


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and where each came from."""

    settings: Settings
    origins: Mapping[str, str]  # name → "flag --memory", "environment …", "file …" or "default"
    file: Path | None  # that was read

    def shown(self) -> dict[str, dict[str, Any]]:
        """Every setting with its value and origin; secrets only say that they are set."""
        values = self.settings.model_dump(mode="json")
        return {
            name: {"value": _hidden(value), "origin": self.origins[name]}
            for name, value in values.items()
        }


def load(flags: Mapping[str, Any] | None = None, *, config: Path | None = None) -> Loaded:
    """Gather and check the settings. `flags` with the value None were not given.

    ConfigError names the origin and the setting that is wrong or not known. `config` (or
    `DOVETAIL_CONFIG`) names the file and must exist; without, `dovetail.toml` here may.
    """
    _refuse_unknown_variables(os.environ)
    file = _file(config)
    from_file = _read_file(file) if file else {}
    layers: list[tuple[Mapping[str, Any], str]] = [
        (from_file, f"file {file}"),
        (EnvSettingsSource(Settings)(), f"environment {PREFIX}{{upper}}"),
        ({k: v for k, v in (flags or {}).items() if v is not None}, "flag --{dashed}"),
    ]
    merged: dict[str, Any] = {}
    origins = dict.fromkeys(Settings.model_fields, "default")
    for values, origin in layers:
        for name, value in values.items():
            rival = RIVALS.get(name)
            if rival is not None and rival not in values:
                merged.pop(rival, None)
                origins[rival] = "default"
            merged[name] = value
            origins[name] = origin.format(upper=name.upper(), dashed=name.replace("_", "-"))
    try:
        settings = Settings(**merged)
    except ValidationError as e:
        raise _refused(e, origins) from e
    return Loaded(settings, origins, file)


def _file(config: Path | None) -> Path | None:
    named = config or (Path(p) if (p := os.environ.get("DOVETAIL_CONFIG")) else None)
    if named is not None:
        return named
    return Path(FILE_NAME) if Path(FILE_NAME).exists() else None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(
            f"settings file {str(path)!r} cannot be read: {e.strerror}",
            remedy="name another with --config, or take it away",
        ) from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(
            f"settings file {str(path)!r} is not TOML: {e}",
            remedy='write lines such as memory = "256MB"',
        ) from e
    for name in values:
        if name not in Settings.model_fields:
            raise _unknown(f"settings file {str(path)!r}: {name!r}", name, Settings.model_fields)
    return values


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields} | NOT_SETTINGS
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known and not _SERVICE_LINK.search(name):
            raise _unknown(f"environment variable {name}", name, known)


def _unknown(what: str, name: str, known: Iterable[str]) -> ConfigError:
    close = get_close_matches(name, list(known), n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    return ConfigError(f"{what} is not a setting", remedy=f"{guess}docs/admin.md lists them all")


def _refused(error: ValidationError, origins: Mapping[str, str]) -> ConfigError:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    message = plain(first, show=name not in ("token", "read_token"))
    if not name:
        return ConfigError(f"settings: {message}", remedy="see `dovetail config show`")
    if name not in origins or name not in Settings.model_fields:
        return _unknown(f"{name!r}", name, Settings.model_fields)
    return ConfigError(f"{origins[name]}: {name}: {message}", remedy="see docs/admin.md")


def _secret(value: SecretStr | None, file: Path | None) -> str:
    if value is not None:
        return value.get_secret_value()
    if file is None:
        return ""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(
            f"token file {str(file)!r} cannot be read: {e}", remedy="name a file with one line"
        ) from e
    if not token:
        raise ConfigError(f"token file {str(file)!r} is empty", remedy="write the token into it")
    return token


def _hidden(value: Any) -> Any:
    """A value as it may be shown."""
    if isinstance(value, list):
        return [_hidden(v) for v in value]
    return without_credentials(value) if isinstance(value, str) else value

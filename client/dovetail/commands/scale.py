"""`dovetail scale N`: more or fewer processors of a cluster that Docker Compose runs.

A new processor is a copy of one that Compose started: same image, limits, volumes and labels, so
that `docker compose ps`, `logs` and `down` see it too. One that goes is first asked to leave; its
container is removed once the manager says that its groups are elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.commands.cluster_options import AsJson, Url, open_cluster, print_json
from dovetail_proto.errors import ConfigError, DovetailError, Fault, Refusal

if TYPE_CHECKING:
    from dovetail.cluster import Cluster

SERVICE = "processor"
"""What docker-compose.yml calls them."""

LABEL = "com.docker.compose."
ID_CHARS = 12
"""Of a container's id: its host name, and so the processor's name."""

POLL_S = 0.5


class ScaleError(DovetailError):
    """Docker does not do what was asked, or a processor does not come or go in time."""

    code = "scale"
    fault = Fault.ENVIRONMENT
    retry = True
    exit_code = 7


def scale(
    count: Annotated[int, typer.Argument(metavar="N", help="How many processors there shall be.")],
    *,
    project: Annotated[
        str,
        typer.Option(
            envvar="COMPOSE_PROJECT_NAME", metavar="NAME", help="Compose's name of the cluster."
        ),
    ] = "dovetail",
    timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="For each to come or to go.")
    ] = 300.0,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Add or remove processors of a cluster that Docker Compose runs; groups are moved off first.

    Example: DOVETAIL_TOKEN_FILE=deploy/secrets/token dovetail scale 5
    """
    if count < 1:
        raise ConfigError(
            f"{count} processors cannot run a query", remedy="keep at least one, or end the cluster"
        )
    with _docker() as engine, open_cluster(url) as cluster:
        running = _containers(engine, project)
        if not running:
            raise ConfigError(
                f"no {SERVICE} of Compose project {project!r} runs here",
                remedy="start it with `docker compose up --wait`, or name another --project",
            )
        added = [
            _add(engine, running[0], project, cluster, timeout) for _ in range(count - len(running))
        ]
        gone = _remove(running, len(running) - count, cluster, timeout)
    if as_json:
        print_json({"processors": count, "added": added, "removed": gone})
        return
    changes = [f"added {', '.join(added)}"] * bool(added) + [f"removed {', '.join(gone)}"] * bool(
        gone
    )
    print(f"{count} processors; {'; '.join(changes) or 'nothing to do'}")


def _docker() -> Any:
    """A client of the Docker engine; a context manager."""
    from contextlib import closing

    import docker

    try:
        engine = docker.from_env()
        engine.ping()
    except (docker.errors.DockerException, OSError) as e:
        raise ConfigError(
            f"no Docker engine answers: {e}",
            remedy="run this where the cluster's containers run; without Docker, start "
            "`dovetail processor` on another machine, or `dovetail leave` one",
        ) from e
    return closing(engine)


def _containers(engine: Any, project: str) -> list[Any]:
    """The running processors, as they were started."""
    labels = [f"{LABEL}project={project}", f"{LABEL}service={SERVICE}", f"{LABEL}oneoff=False"]
    found = engine.containers.list(filters={"label": labels})
    return sorted(found, key=_number)


def _number(container: Any) -> int:
    return int(container.labels[f"{LABEL}container-number"])


def _name(container: Any) -> str:
    return str(container.id[:ID_CHARS])


def _add(engine: Any, like: Any, project: str, cluster: Cluster, timeout_s: float) -> str:
    import docker

    number = max(_number(c) for c in _containers(engine, project)) + 1
    made, config = like.attrs, like.attrs["Config"]
    separator = "-" if f"-{SERVICE}-" in like.name else "_"  # Compose 2 and 1
    try:
        created = engine.api.create_container(
            image=made["Image"],
            command=config["Cmd"],
            user=config["User"],
            environment=config["Env"],
            labels={**config["Labels"], f"{LABEL}container-number": str(number)},
            healthcheck=config.get("Healthcheck"),
            name=f"{project}{separator}{SERVICE}{separator}{number}",
            host_config=made["HostConfig"],
            networking_config={
                "EndpointsConfig": {
                    network: {"Aliases": [SERVICE]}
                    for network in made["NetworkSettings"]["Networks"]
                }
            },
        )
        engine.api.start(created["Id"])
    except docker.errors.APIError as e:
        raise ScaleError(f"Docker starts no processor: {e.explanation}") from e
    name = str(created["Id"][:ID_CHARS])
    _until(
        lambda: _state(cluster, name) == "alive",
        timeout_s,
        f"processor {name} has not joined",
        f"see `docker logs {name}`",
    )
    return name


def _remove(running: list[Any], count: int, cluster: Cluster, timeout_s: float) -> list[str]:
    """Let `count` of them go, the youngest first; those that cannot leave are passed over."""
    gone: list[str] = []
    stay: list[Refusal] = []
    for container in reversed(running):
        if len(gone) >= count:
            break
        name = _name(container)
        try:
            cluster.leave(name)
        except Refusal as e:
            stay.append(e)
            continue
        _until(
            lambda name=name: _state(cluster, name) == "left",  # type: ignore[misc]
            timeout_s,
            f"processor {name} still has groups to move",
            "its container runs on; ask again later, `dovetail status` shows its groups",
        )
        container.remove(force=True)
        gone.append(name)
    if len(gone) < count:
        raise Refusal(
            stay[0].domain,
            f"{len(running) - len(gone)} processors have to stay: {stay[0].message}",
            remedy=f"{stay[0].remedy}; then scale again",
            reason="state",
        )
    return gone


def _state(cluster: Cluster, name: str) -> str:
    from dovetail_proto.admin import processor_state

    return processor_state(cluster.status().processors, name)


def _until(true: Callable[[], bool], timeout_s: float, problem: str, remedy: str) -> None:
    until_s = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > until_s:
            raise ScaleError(f"{problem} after {timeout_s:g} s", remedy=remedy)
        time.sleep(POLL_S)

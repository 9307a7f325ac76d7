"""The verbs that steer a cluster: where groups are, whether queries get on, who belongs to it."""

from __future__ import annotations

from typing import Annotated

import typer

from dovetail.commands.cluster_options import (
    AsJson,
    QueryName,
    Url,
    open_cluster,
    print_json,
)
from dovetail.commands.look import show_adaptations
from dovetail.commands.up import Policy
from dovetail_proto.errors import ConfigError

policy = typer.Typer(help="How a query adapts.", no_args_is_help=True)

Groups = Annotated[
    str, typer.Option("--groups", metavar="G,G…", help="Groups, for example 3,7,9-12.")
]


def move(
    name: QueryName,
    *,
    groups: Groups,
    to: Annotated[str, typer.Option("--to", metavar="PROCESSOR", help="Who gets them.")],
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Begin to move groups of one owner to another processor; `moves` tells what comes of it.

    Example: dovetail move prices --groups 3,7,9 --to p2
    """
    with open_cluster(url) as cluster:
        made = cluster.query(name).move(parse_groups(groups), to)
    if as_json:
        print_json(made)
    else:
        count = f"{made.groups} group{'s' if made.groups > 1 else ''}"
        print(f"move {made.id}: {count} from {made.sender} to {made.receiver}")


def pin(name: QueryName, *, groups: Groups, url: Url = None, as_json: AsJson = False) -> None:
    """Keep groups where they are: no policy moves them.

    Example: dovetail pin prices --groups 0-9
    """
    _pin(name, groups, url, pinned=True, as_json=as_json)


def unpin(name: QueryName, *, groups: Groups, url: Url = None, as_json: AsJson = False) -> None:
    """Let policies move groups again.

    Example: dovetail unpin prices --groups 0-9
    """
    _pin(name, groups, url, pinned=False, as_json=as_json)


def pause(name: QueryName, *, url: Url = None, as_json: AsJson = False) -> None:
    """Take nothing in until `resume`; whoever feeds its streams waits.

    Example: dovetail pause prices
    """
    with open_cluster(url) as cluster:
        status = cluster.query(name).pause()
    if as_json:
        print_json(status)
    else:
        print(f"query {name} is {status.state}")


def resume(name: QueryName, *, url: Url = None, as_json: AsJson = False) -> None:
    """Go on after `pause`.

    Example: dovetail resume prices
    """
    with open_cluster(url) as cluster:
        status = cluster.query(name).resume()
    if as_json:
        print_json(status)
    else:
        print(f"query {name} is {status.state}")


def rebalance(
    name: QueryName,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be done, and why.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Let the query's policy decide now, whatever its interval.

    Example: dovetail rebalance prices --dry-run
    """
    with open_cluster(url) as cluster:
        made = cluster.query(name).rebalance(dry_run=dry_run)
    if as_json:
        print_json(made)
    else:
        show_adaptations(made)


@policy.command("set")
def set_policy(
    chosen: Annotated[Policy, typer.Argument(metavar="POLICY", help="The new one.")],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[QUERY…]", help="All that run, by default.")
    ] = None,
    *,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Adapt by another policy from now on.

    Example: dovetail policy set active-disk prices
    """
    with open_cluster(url) as cluster:
        wanted = names or [q.name for q in cluster.queries() if not q.ended_s]
        if not wanted:
            raise ConfigError("no query runs", remedy="submit one first")
        changed = [cluster.query(name).set_policy(chosen) for name in wanted]
    if as_json:
        print_json(changed)
    else:
        print(f"{', '.join(q.name for q in changed)}: {chosen}")


def leave(
    name: Annotated[str, typer.Argument(metavar="PROCESSOR", help="Who shall go.")],
    *,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Move a processor's groups and streams away and let it go; `status` tells when it has left.

    Example: dovetail leave p3
    """
    with open_cluster(url) as cluster:
        status = cluster.leave(name)
    if as_json:
        print_json(status)
    else:
        print(f"processor {name} is {status.state}")


def parse_groups(text: str) -> list[int]:
    """`3,7,9-12`; ConfigError for anything else."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ConfigError(
                f"--groups {text!r} are no groups", remedy="write for example 3,7,9-12"
            )
        found += range(int(first), int(last or first) + 1)
    if not found:
        raise ConfigError(f"--groups {text!r} are no groups", remedy="write for example 3,7,9-12")
    return found


def _pin(name: str, groups: str, url: str | None, *, pinned: bool, as_json: bool) -> None:
    with open_cluster(url) as cluster:
        query = cluster.query(name)
        chosen = parse_groups(groups)
        partitions = query.pin(chosen) if pinned else query.unpin(chosen)
    if as_json:
        print_json(partitions)
        return
    held = [p.group for p in partitions.partitions if p.pinned]
    print(f"pinned: {', '.join(map(str, held)) or 'none'}")

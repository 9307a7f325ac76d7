"""What a seed is dealt from: the ordinary scene is the widest, the others look at one place each.

A broken rule shows only where it is needed: that a store fences, when a manager that was replaced
wakes up in the middle of a move. Few ordinary seeds come there. In a scene nearly every seed does:
some faults are certain, those that would end the run before are left out, and cluster, queries and
rows are drawn from fewer possibilities. All else is dealt as ever, and the judge is the same: the
product has to pass every scene.
"""

from __future__ import annotations

from dataclasses import dataclass

from kit.sim_queries import QUERIES

QUIET = frozenset({"quiet"})
DEATHS = frozenset({"processor crash", "processor crash at step", "late crash", "broken disk"})
MANAGERS = frozenset({"manager crash", "manager crash at write", "manager pause"})
NET = frozenset({"loss", "slow", "cut"})
ACTS = frozenset({"policy", "pause", "close", "leave"})
"""What operators do beside moving groups: it keeps them where they are, or ends the query."""

OFTEN = {"move": 20, "policy": 20, "close": 1}
"""How often an operator does what is certain, at least, to each query."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Faults, and possibilities to draw from."""

    certain: frozenset[str] = frozenset()  # faults, and acts of operators
    never: frozenset[str] = frozenset()
    processors: tuple[int, ...] = (2, 2, 3, 3, 4)
    queries: tuple[int, ...] = (1, 1, 1, 2, 2, 3)  # how many
    sql: tuple[int, ...] = tuple(range(len(QUERIES)))
    policies: tuple[str, ...] = (
        *("lazy-disk", "lazy-disk"),
        *("active-disk", "active-disk", "active-disk", "active-disk"),
        *("disk", "distributed", "none"),
    )
    spill_above: tuple[float, ...] = (0.15, 0.4, 0.8)
    expected: tuple[str, ...] = ("unknown", "full", "much")  # state, as operators tell it
    force_above: tuple[float, ...] = (0.05, 0.4)
    move_min_fraction: float = 0.02
    chunk_bytes: tuple[int, ...] = (1, 20_000, 1 << 20)
    step_timeouts_s: tuple[float, ...] = (1.5, 3.0)
    rows: tuple[int, int] = (50, 120)  # of a source: at least, at most
    widths: tuple[int, ...] = (1000, 4000, 6000, 6000)
    hot: tuple[float, ...] = (0.0, 0.0, 0.07)
    short_streams: tuple[int, ...] = (0, 0, 0, 1, 1, 2)
    losses: tuple[float, ...] = (0.02, 0.1, 0.3)
    leaves_by_s: float = 12.0  # a processor
    manager_pauses_s: tuple[float, ...] = (1.0, 4.0, 7.0, 9.0)

    def chance(self, kind: str, chance: float) -> float:
        """How likely something is here that has this chance in an ordinary seed."""
        return 1.0 if kind in self.certain else 0.0 if kind in self.never else chance


ORDINARY = Scene()

_LIVES = QUIET | DEATHS | MANAGERS
_STAYS = _LIVES | ACTS

SCENES = {
    "late messages": Scene(
        frozenset({"move", "slow", "duplicate"}), _STAYS, chunk_bytes=(1,), step_timeouts_s=(1.5,)
    ),
    "far receiver": Scene(frozenset({"far processor", "duplicate"}), _STAYS, chunk_bytes=(1,)),
    "manager replaced": Scene(
        frozenset({"move", "manager pause", "replaced"}),
        QUIET | DEATHS | NET | ACTS | {"manager crash", "manager crash at write"}
        | {"store outage", "processor pause"},
        manager_pauses_s=(7.0, 9.0),
    ),
    "manager cut off": Scene(
        frozenset({"move", "cut at commit"}), _STAYS, chunk_bytes=(1,), step_timeouts_s=(1.5,)
    ),
    "manager dies": Scene(frozenset({"move", "crash at commit"}), _STAYS, chunk_bytes=(1,)),
    "forced pushes": Scene(
        frozenset({"loss"}),
        _STAYS | {"move", "cut"},
        processors=(2, 3),
        queries=(1,),
        policies=("active-disk",),
        expected=("full", "much"),
        force_above=(0.05,),
        move_min_fraction=0.9,
        rows=(80, 150),
        widths=(6000,),
        hot=(0.2,),
        losses=(0.3,),
    ),
    "early ends": Scene(
        frozenset({"hasty end", "slow workers"}), _LIVES | {"close", "leave"}, short_streams=(1, 2)
    ),
    "early closing": Scene(frozenset({"close", "slow workers"}), _LIVES | {"leave"}),
    "ended inputs": Scene(
        frozenset({"move"}),
        _STAYS | NET,
        processors=(2, 3),
        queries=(1,),
        sql=(0, 2, 5),
        policies=("active-disk",),
        expected=("much",),
        force_above=(0.05,),
        chunk_bytes=(1,),
        rows=(150, 250),
        hot=(0.2,),
        short_streams=(2,),
    ),
    "slow sinks": Scene(
        frozenset({"move", "slow disk"}),
        _STAYS | NET | {"blocked sink"},
        processors=(2,),
        queries=(1,),
        sql=(2,),
        policies=("disk",),
        step_timeouts_s=(10.0,),
        widths=(6000,),
        hot=(0.35,),
    ),
    "come back": Scene(
        frozenset({"leave", "come back"}),
        _LIVES | NET | {"policy", "pause", "close"},
        processors=(2, 3),
        queries=(1,),
        policies=("disk", "lazy-disk"),
        spill_above=(0.15,),
        widths=(6000,),
        leaves_by_s=7.0,
    ),
    "another folder": Scene(frozenset({"another folder"}), _STAYS | NET),
    "policies": Scene(
        frozenset({"policy"}), _LIVES | NET, queries=(1,), spill_above=(0.15,)
    ),
    "crowded": Scene(
        never=_STAYS, processors=(2,), queries=(2,), spill_above=(0.8,), rows=(150, 250)
    ),
}  # fmt: skip
"""By the place that they look at."""

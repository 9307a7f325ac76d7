"""The operator of a simulated cluster: declares, submits, changes its mind, and closes in the end.

Whatever is asked for is asked again until it is seen to be so: a manager may die before it has
written it down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dovetail_proto.assignment import Phase
from dovetail_proto.errors import Domain, DovetailError, Refusal
from kit.sim_faults import LOAD_S
from kit.sim_queries import STREAMS
from kit.sim_scenes import OFTEN
from kit.sim_world import World

if TYPE_CHECKING:
    from kit.sim_manager import SimManager
    from kit.sim_run import Scenario, Submission

LOOK_S = 0.25
HASTE_S = 0.2
"""Until a stream is ended whose readers were paused: some batches come meanwhile."""

POLICIES = ("lazy-disk", "active-disk", "disk", "distributed", "none")

Verb = Callable[["SimManager"], None]


class Operator:
    """A node that lives as long as the run."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self.world, self.scenario = world, scenario
        self.address = "operator"
        self.crashed = False
        self.paused_until_s = 0.0
        self._hasty: set[str] = set()  # streams whose readers were paused
        world.nodes[self.address] = self
        world.at(LOOK_S, self, self._look)
        self._plan()

    def receive(self, source: str, message: Any) -> None:
        """Nobody writes to it."""

    def check(self) -> None:
        """Nothing."""

    @property
    def manager(self) -> SimManager | None:
        """Who leads, if it answers."""
        manager = self.scenario.managers[-1]
        silent = manager.crashed or manager.paused_until_s > self.world.now_s
        return None if silent else manager

    def _ask(self, what: str, verb: Verb) -> DovetailError | None:
        """Have the manager do something; why it does not."""
        if (manager := self.manager) is None:
            return None
        self.world.tell(self.address, what)
        try:
            verb(manager)
        except DovetailError as e:
            self.world.tell(self.address, f"refused: {e}")
            return e
        return None

    # What is wanted in the end --------------------------------------------------------------------

    def _look(self) -> None:
        self.world.at(LOOK_S, self, self._look)
        if (manager := self.manager) is None:
            return
        if len(manager.members()) < len(self.scenario.names) and self.world.now_s < 2.0:
            return
        for stream in STREAMS:
            if manager.home_of(stream) is None:
                self._ask(f"create {stream}", lambda m, s=stream: m.create_stream(s))  # type: ignore[misc]
        for query in self.scenario.queries:
            self._see_to(query, manager)
        self._end_streams(manager)

    def _end_streams(self, manager: SimManager) -> None:
        """End the streams that are to end early, once all was sent and every query reads them.

        Or in haste: while sources send, and what they have sent waits for queries that pause.
        """
        if not all(q.run or q.given_up for q in self.scenario.queries):
            return
        for stream in self.scenario.short_streams:
            feeds = [f for f in self.scenario.feeds if f.stream == stream]
            known = manager.home_of(stream) is not None and not manager.has_ended(stream)
            hasty = "hasty end" in self.scenario.scene.certain and stream not in self._hasty
            if known and hasty and all(feed.half_sent for feed in feeds):
                self._hasty.add(stream)
                for query in self.scenario.queries:
                    self._pause(query)
                self.world.at(HASTE_S, self, self._end_stream, stream)
            elif known and all(feed.done for feed in feeds):
                self._end_stream(stream)

    def _end_stream(self, stream: str) -> None:
        self.world.happened.add("stream ended early")
        self._ask(f"end {stream}", lambda m: m.end_stream(stream))

    def _see_to(self, query: Submission, manager: SimManager) -> None:
        now_s = self.world.now_s
        if query.end[0] or now_s < query.at_s:
            return
        if not query.run:
            run = manager.run_of(query.name)
            if run is not None:
                query.run, query.given_up = run, ""
            elif not query.given_up and all(manager.home_of(s) is not None for s in STREAMS):
                self._submit(query)
            return
        if query.listening_s > now_s and manager.listening(query.name):
            query.listening_s = now_s
        query.end = manager.end_of(query.name)
        if query.end[0]:
            return
        phase = manager.phase_of(query.name)
        if self._time_to_close(query) and phase is not Phase.CLOSING:
            query.closing_s = min(query.closing_s, now_s)
            self._set_phase(query, Phase.CLOSING)
        elif now_s > LOAD_S and phase is Phase.PAUSED:
            self._set_phase(query, Phase.RUNNING)

    def _submit(self, query: Submission) -> None:
        if self.world.now_s > LOAD_S:
            query.given_up = "too late"
            return
        error = self._ask(
            f"submit {query.name}",
            lambda m: m.submit(
                query.plan,
                query.policies[-1],
                spill=query.spill,
                disk=query.disk,
                weights=query.weights if len(m.members()) == len(query.weights or ()) else None,
                expected_bytes=query.expected_bytes,
            ),
        )
        if isinstance(error, Refusal) and error.domain is Domain.MEMORY:
            query.given_up = str(error)

    def _time_to_close(self, query: Submission) -> bool:
        if query.closing_s < self.world.now_s:
            return True
        return self.world.now_s > LOAD_S and all(feed.done for feed in self.scenario.feeds)

    def _set_phase(self, query: Submission, phase: Phase) -> None:
        self._ask(f"{phase} {query.name}", lambda m: m.set_phase(query.name, phase))

    # Changes of mind ------------------------------------------------------------------------------

    def _plan(self) -> None:
        random, scene = self.world.random, self.scenario.scene
        for query in self.scenario.queries:
            for act, what, usual in (
                ("policy", self._change_policy, 0.45),
                ("move", self._move, 0.6),
                ("pin", self._pin, 0.1),
                ("pause", self._pause, 0.25),
                ("close", self._close, 0.25),
            ):
                least = OFTEN[act] if act in scene.certain else 0
                chance = 0.0 if act in scene.never else usual
                while (least := least - 1) >= 0 or random.random() < chance:
                    self.world.at(random.uniform(1.0, LOAD_S), self, what, query)
        if random.random() < scene.chance("leave", 0.4):
            at_s = random.uniform(2.0, scene.leaves_by_s) * random.choice((0.6, 1.0))
            self.world.at(at_s, self, self._leave, random.random() < 0.5)

    def _change_policy(self, query: Submission) -> None:
        policy = self.world.random.choice(POLICIES)
        if query.run and self.manager is not None:
            query.policies.append(policy)
            self._ask(f"{query.name} by {policy}", lambda m: m.set_policy(query.name, policy))

    def move_to(self, to: str) -> None:
        """Have groups of every query move to somebody."""
        for query in self.scenario.queries:
            self._move(query, to)

    def _move(self, query: Submission, receiver: str = "") -> None:
        random, manager = self.world.random, self.manager
        if manager is None or not query.run:
            return
        sender = random.choice(self.scenario.names)
        to = receiver or random.choice(self.scenario.names)
        owned = [g for g, p in manager.owners(query.name).items() if p == sender]
        groups = owned[: random.randint(1, 4)]
        if groups and sender != to:
            self._ask(f"move {groups} to {to}", lambda m: m.move(query.name, groups, to))

    def _pin(self, query: Submission) -> None:
        pinned = self.world.random.random() < 0.6
        if query.run:
            self._ask(f"pin {query.name}: {pinned}", lambda m: m.pin(query.name, (0, 1), pinned))

    def _pause(self, query: Submission) -> None:
        if query.run:
            self._set_phase(query, Phase.PAUSED)
            resume_s = self.world.random.choice((0.3, 2.0, 30.0))
            self.world.at(resume_s, self, self._resume, query)

    def _resume(self, query: Submission) -> None:
        if self.manager is not None and self.manager.phase_of(query.name) is Phase.PAUSED:
            self._set_phase(query, Phase.RUNNING)

    def _close(self, query: Submission) -> None:
        """At once, or after a pause: then batches wait for it."""
        random = self.world.random
        if query.run and random.random() < 0.5:
            self._set_phase(query, Phase.PAUSED)
            self.world.at(random.uniform(0.1, 1.5), self, self._close_now, query)
        else:
            self._close_now(query)

    def _close_now(self, query: Submission) -> None:
        if query.run:
            query.closing_s = min(query.closing_s, self.world.now_s)

    def _leave(self, ends: bool) -> None:
        """A processor is let go, or its machine tells it to end."""
        name = self.world.random.choice(self.scenario.names)
        process = next((p for p in self.scenario.alive() if p.id == name), None)
        if process is None or len(self.scenario.alive()) < 2:
            return
        if self.world.random.random() < self.scenario.scene.chance("come back", 0.8):
            self.world.at(self.world.random.uniform(1.0, 4.0), self, self._come_back, name)
        if ends:
            self.world.tell(process.address, "is told to end")
            process.ends = True
        else:
            self._ask(f"have {name} leave", lambda m: m.leave(name))

    def _come_back(self, name: str) -> None:
        """A processor that has left is started again, with what it wrote."""
        if self.world.now_s > LOAD_S:
            return
        if any(p.id == name for p in self.scenario.alive()):
            self.world.at(0.5, self, self._come_back, name)  # it is still leaving
        else:
            self.world.happened.add("came back")
            self.scenario.start_processor(name)

"""What may go wrong, and what operators do: a random subset per seed, on the world's clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dovetail_proto.ids import ProcessorId, process_of
from kit.sim_processor import SimProcessor

if TYPE_CHECKING:
    from kit.sim_run import Scenario

LOAD_S = 12.0
"""How long faults happen; sources are done, or stopped by back pressure, within it."""

STEPS = (
    "ComputePartitionsToMove",
    "Reserve",
    "DeactivatePartitions",
    "SendPartitions",
    "ReceivePartitions",
    "ReactivatePartitions",
    "FinishMove",
    "PushPartitions",
    "StopQuery",
    "Assign",
    "spill",
    "groups",
    "results",
)
"""Where a processor may be told to crash, before or after: messages, and jobs by their lanes."""

Chosen = Callable[[str, float], bool]


def plan_faults(scenario: Scenario) -> set[str]:
    """Choose a random subset of faults and schedule it; the names of what was chosen."""
    random, scene, kinds = scenario.world.random, scenario.scene, set[str]()

    def chosen(kind: str, chance: float) -> bool:
        if random.random() < scene.chance(kind, chance):
            kinds.add(kind)
            return True
        return False

    if not chosen("quiet", 0.1):
        _net(scenario, chosen)
        _disks(scenario, chosen)
        _managers(scenario, chosen)
        _processors(scenario, chosen)
        _aimed(scenario)
    return kinds


def _net(scenario: Scenario, chosen: Chosen) -> None:
    random, faults = scenario.world.random, scenario.world.faults
    faults.delay_s = random.choice((0.001, 0.005, 0.05))
    if chosen("loss", 0.3):
        faults.loss = random.choice(scenario.scene.losses)
    if chosen("duplicate", 0.4):
        faults.duplicate = random.choice((0.05, 0.3))
    if chosen("slow", 0.4):
        faults.slow, faults.slow_s = random.choice((0.02, 0.1)), random.choice((0.5, 3.0, 8.0))
    if chosen("cut", 0.25):
        for _ in range(random.randint(1, 4)):
            a, b = random.sample([*scenario.names, "m1", "m2"], 2)
            since = random.uniform(0, LOAD_S)
            faults.cuts.append((since, since + random.choice((0.5, 2.0, 4.5)), a, b))


def _disks(scenario: Scenario, chosen: Chosen) -> None:
    random, faults = scenario.world.random, scenario.world.faults
    faults.job_s = random.choice((0.002, 0.02, 0.1))
    if chosen("slow disk", 0.2):
        faults.job_s = random.choice((0.5, 2.0))
    if chosen("blocked sink", 0.25):
        for _ in range(random.randint(1, 4)):
            since = random.uniform(1, LOAD_S)
            until = since + random.choice((1.0, 3.0))
            whose = random.choice(scenario.names)
            faults.blocked_sinks.append((since, until, whose))
            for at_s in (since, since + 0.5):
                scenario.world.at(at_s, None, scenario.operator.move_to, whose)
    if chosen("full disk", 0.2):
        for _ in range(random.randint(1, 3)):
            since = random.uniform(1, LOAD_S)
            until = since + random.choice((0.5, 3.0, 6.0))
            faults.full_disks.append((since, until, random.choice(scenario.names)))
    if chosen("broken disk", 0.06):
        since = random.uniform(1, LOAD_S)
        faults.bad_disks.append((since, since + 3.0, random.choice(scenario.names)))
    if chosen("store", 0.25):
        faults.store_loss = random.choice((0.1, 0.4))
    if chosen("store outage", 0.15):
        for _ in range(random.randint(1, 3)):
            since = random.uniform(0, LOAD_S)
            faults.store_outages.append((since, since + random.uniform(1, 4)))


def _managers(scenario: Scenario, chosen: Chosen) -> None:
    world, random = scenario.world, scenario.world.random
    if chosen("manager crash", 0.3):
        for _ in range(random.randint(1, 3)):
            world.at(random.uniform(0.5, LOAD_S), None, _crash_manager, scenario)
    if chosen("manager crash at write", 0.4):
        scenario.managers[0].crash_at_write = (random.randint(1, 25), random.random() < 0.5)
        if random.random() < 0.5:
            world.at(LOAD_S * 0.6, None, _plan_crash_at_write, scenario)
    if chosen("manager pause", 0.3):
        pause_s = random.choice(scenario.scene.manager_pauses_s)
        in_move = random.random() < 0.6
        world.at(random.uniform(1, LOAD_S), None, _pause_manager, scenario, pause_s, in_move)
    # Whatever kills managers, somebody starts one again after a while.
    for at_s in range(2, int(LOAD_S), 2):
        world.at(at_s + random.random(), None, scenario.ensure_manager)


def _processors(scenario: Scenario, chosen: Chosen) -> None:
    world, random, names = scenario.world, scenario.world.random, scenario.names
    if chosen("slow workers", 0.35):
        world.faults.step_s = random.choice((0.004, 0.02, 0.05))
    if chosen("processor pause", 0.2):
        pause_s = random.choice((0.5, 2.0, 4.5, 9.0) if chosen("long", 0.2) else (0.5, 2.0, 4.5))
        at_s = random.uniform(1, LOAD_S)
        world.at(at_s, None, _pause_processor, scenario, random.choice(names), pause_s)
    if chosen("processor crash", 0.1):
        at_s, who = random.uniform(1, LOAD_S), random.choice(names)
        world.at(at_s, None, _crash_processor, scenario, who)
        if chosen("restart", 0.5):
            world.at(at_s + random.uniform(0.2, 8), None, _restart, scenario, who)
    elif chosen("processor crash at step", 0.1):
        plan = (random.choice(names), random.choice(STEPS), random.randint(1, 3))
        scenario.crash_plan = (*plan, random.random() < 0.5)
    if chosen("late join", 0.25):
        late = f"p{len(names)}"
        at_s = random.uniform(0.5, LOAD_S / 2)
        world.at(at_s, None, scenario.start_processor, late)
        if chosen("late crash", 0.2):
            world.at(at_s + random.uniform(1, 5), None, _crash_processor, scenario, late)
            world.at(at_s + random.uniform(6, 9), None, _restart, scenario, late)


def _aimed(scenario: Scenario) -> None:
    """What only scenes have: faults that hit where chance would seldom do."""
    world, random, certain = scenario.world, scenario.world.random, scenario.scene.certain
    if "far processor" in certain:
        world.faults.far, world.faults.far_s = random.choice(scenario.names), 1.0
        for at_s in range(2, int(LOAD_S)):
            world.at(at_s, None, scenario.operator.move_to, world.faults.far)
    if "cut at commit" in certain:
        world.faults.cut_at_commit_s = random.choice((2.0, 4.0))
    world.faults.crash_at_commit = "crash at commit" in certain


def _crash_manager(scenario: Scenario) -> None:
    if not scenario.managers[-1].crashed:
        scenario.managers[-1].crash("by chance")


def _plan_crash_at_write(scenario: Scenario) -> None:
    manager = scenario.managers[-1]
    after = scenario.world.random.random() < 0.5
    manager.crash_at_write = (manager.writes_begun + scenario.world.random.randint(1, 6), after)


def _pause_manager(scenario: Scenario, pause_s: float, in_move: bool) -> None:
    manager, world = scenario.managers[-1], scenario.world
    if in_move and not manager.moving and world.now_s < LOAD_S:
        world.at(0.05, None, _pause_manager, scenario, pause_s, in_move)
        return
    manager.paused_until_s = world.now_s + pause_s
    world.tell(manager.address, f"PAUSES for {pause_s} s")
    if pause_s > 2 and world.random.random() < scenario.scene.chance("replaced", 0.8):
        # Somebody takes it for dead: two managers, one of them replaced without knowing it.
        world.at(pause_s / 2, None, scenario.start_manager)


def _running(scenario: Scenario, name: str) -> SimProcessor | None:
    return next((p for p in scenario.alive() if p.id == name), None)


def _pause_processor(scenario: Scenario, name: str, pause_s: float) -> None:
    if (processor := _running(scenario, name)) is not None:
        for worker in (processor, *scenario.neighbours(processor)):
            worker.paused_until_s = scenario.world.now_s + pause_s
            scenario.world.tell(worker.address, f"PAUSES for {pause_s} s")


def _crash_processor(scenario: Scenario, name: str) -> None:
    if (processor := _running(scenario, name)) is not None:
        processor.crash("by chance")


def _restart(scenario: Scenario, name: str) -> None:
    """A crashed processor comes back, empty, under its old name; so do its process's workers."""
    process = process_of(ProcessorId(name))
    newest = {p.id: p for p in scenario.processors if process_of(p.id) == process}
    for former in newest.values():
        if former.crashed and not former.ended:
            scenario.start_processor(former.id)

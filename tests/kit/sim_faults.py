"""What may go wrong: a random subset of faults per seed, scheduled on the world's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit.sim_processor import SimProcessor

if TYPE_CHECKING:
    from kit.sim_run import Scenario

LOAD_S = 18.0
"""How long faults happen; sources are done, or stopped by back pressure, within it."""

STEPS = (
    "ComputePartitionsToMove",
    "Reserve",
    "DeactivatePartitions",
    "SendPartitions",
    "ReceivePartitions",
    "ReactivatePartitions",
    "FinishMove",
    "push",
)
"""Where a processor may be told to crash, before or after."""


def plan_faults(scenario: Scenario) -> set[str]:
    """Choose a random subset of faults and schedule it; the names of what was chosen."""
    world, random = scenario.world, scenario.world.random
    faults, kinds = world.faults, set[str]()
    names = [p.address for p in scenario.processors]

    def chosen(kind: str, chance: float) -> bool:
        if random.random() < chance:
            kinds.add(kind)
            return True
        return False

    faults.delay_s = random.choice((0.001, 0.005, 0.05))
    if chosen("loss", 0.4):
        faults.loss = random.choice((0.02, 0.1, 0.3))
    if chosen("duplicate", 0.4):
        faults.duplicate = random.choice((0.05, 0.3))
    if chosen("slow", 0.4):
        faults.slow, faults.slow_s = random.choice((0.02, 0.1)), random.choice((0.5, 3.0, 8.0))
    if chosen("slow disk", 0.3):
        faults.disk_s = random.choice((1.0, 4.0))
    if chosen("store", 0.3):
        faults.store_loss = random.choice((0.1, 0.4))
    if chosen("store outage", 0.2):
        for _ in range(random.randint(1, 3)):
            since = random.uniform(0, LOAD_S)
            faults.store_outages.append((since, since + random.uniform(1, 4)))
    if chosen("cut", 0.4):
        for _ in range(random.randint(1, 4)):
            a, b = random.sample([*names, "m1", "m2"], 2)
            since = random.uniform(0, LOAD_S)
            faults.cuts.append((since, since + random.choice((0.5, 2.0, 4.5)), a, b))
    if chosen("manager crash", 0.4):
        for _ in range(random.randint(1, 3)):
            world.at(random.uniform(0.5, LOAD_S), None, _crash_manager, scenario)
    if chosen("manager crash at write", 0.4):
        scenario.managers[0].crash_at_write = (random.randint(1, 14), random.random() < 0.5)
        if random.random() < 0.5:
            world.at(LOAD_S * 0.6, None, _plan_crash_at_write, scenario)
    if chosen("manager pause", 0.3):
        pause_s = random.choice((1.0, 4.0, 7.0, 9.0))
        world.at(random.uniform(1, LOAD_S), None, _pause_manager, scenario, pause_s)
    if chosen("processor pause", 0.25):
        pause_s = random.choice((0.5, 2.0, 4.5, 9.0) if chosen("long", 0.2) else (0.5, 2.0, 4.5))
        at_s = random.uniform(1, LOAD_S)
        world.at(at_s, None, _pause_processor, scenario, random.randrange(len(names)), pause_s)
    if chosen("processor crash", 0.12):
        at_s, who = random.uniform(1, LOAD_S), random.randrange(len(names))
        world.at(at_s, None, scenario.processors[who].crash, "by chance")
        if chosen("restart", 0.5):
            delay_s = random.uniform(0.2, 8)
            world.at(at_s + delay_s, None, _restart, scenario, scenario.processors[who])
    elif chosen("processor crash at step", 0.1):
        plan = (random.choice(names), random.choice(STEPS), random.randint(1, 2))
        scenario.crash_plan = (*plan, random.random() < 0.5)
    if chosen("late join", 0.3):
        leaves, crashes = random.random() < 0.5, chosen("late crash", 0.25)
        at_s = random.uniform(0.5, LOAD_S / 2)
        world.at(at_s, None, _join_late, scenario, leaves, crashes)
    # Whatever kills managers, somebody starts one again after a while.
    for at_s in range(3, int(LOAD_S), 3):
        world.at(at_s + random.random(), None, scenario.ensure_manager)
    return kinds


def _crash_manager(scenario: Scenario) -> None:
    if not scenario.managers[-1].crashed:
        scenario.managers[-1].crash("by chance")


def _plan_crash_at_write(scenario: Scenario) -> None:
    manager = scenario.managers[-1]
    after = scenario.world.random.random() < 0.5
    manager.crash_at_write = (manager.writes_begun + scenario.world.random.randint(1, 6), after)


def _pause_manager(scenario: Scenario, pause_s: float) -> None:
    manager, world = scenario.managers[-1], scenario.world
    manager.paused_until_s = world.now_s + pause_s
    world.tell(manager.address, f"PAUSES for {pause_s} s")
    if pause_s > 2 and world.random.random() < 0.8:
        # Somebody takes it for dead: two managers, one of them deposed.
        world.at(pause_s / 2, None, _take_over, scenario)


def _take_over(scenario: Scenario) -> None:
    scenario.start_manager()


def _pause_processor(scenario: Scenario, who: int, pause_s: float) -> None:
    processor = scenario.processors[who]
    processor.paused_until_s = scenario.world.now_s + pause_s
    scenario.world.tell(processor.address, f"PAUSES for {pause_s} s")


def _join_late(scenario: Scenario, leaves: bool, crashes: bool) -> None:
    world = scenario.world
    newcomer = SimProcessor(world, scenario, f"p{len(scenario.names)}", 1, late=True)
    scenario.processors.append(newcomer)
    world.tell(newcomer.address, "joins late")
    if leaves:
        world.at(world.random.uniform(3, 12), newcomer, setattr, newcomer, "leaving", True)
    if crashes:
        world.at(world.random.uniform(1, 8), None, newcomer.crash, "by chance")
        world.at(world.random.uniform(9, 12), None, _restart, scenario, newcomer)


def _restart(scenario: Scenario, former: SimProcessor) -> None:
    """A crashed processor comes back, empty, under its old name."""
    if former.crashed and not former.leaving:
        address, incarnation = former.address, former.incarnation + 1
        again = SimProcessor(scenario.world, scenario, address, incarnation, late=True)
        for host in scenario.processors:  # a new connection is a new link
            for split in scenario.splits:
                host.outboxes.pop((split, address), None)
        scenario.processors.append(again)
        scenario.world.tell(address, f"starts again as incarnation {incarnation}")

"""Depth first: a batch goes all the way down, queries take turns, equals take turns."""

from __future__ import annotations

from dovetail_processor.graph.node import Statistics, Waiting
from dovetail_processor.scheduling.depth_first import DepthFirst


class Ready:
    """A node with as much work as the test says."""

    def __init__(self, name: str, depth: int, *owners: str, work: int = 0) -> None:
        self.name, self.depth, self.owners, self.work = name, depth, owners, work
        self.statistics = Statistics()
        self.waiting = Waiting(work, work, 0.0)
        self.feeds: Ready | None = None

    @property
    def ready(self) -> bool:
        """There is work."""
        return self.work > 0

    def step(self, now_s: float) -> None:
        """One batch on."""
        self.work -= 1
        if self.feeds is not None:
            self.feeds.work += 1


def run(nodes: list[Ready], steps: int = 1_000) -> str:
    """Names of the nodes in the order in which they work."""
    strategy, ran = DepthFirst(), []
    for _ in range(steps):
        ready = [n for n in nodes if n.ready]
        if not ready:
            break
        chosen = strategy.choose(ready, 0.0)
        chosen.step(0.0)
        ran.append(chosen.name)
    return " ".join(ran)


def test_a_batch_is_followed_down_before_the_next_one_is_taken() -> None:
    """So results come as early as can be, and arcs stay nearly empty."""
    home, split, join = (Ready(n, d, "q") for n, d in (("home", 0), ("split", 1), ("join", 2)))
    home.feeds, split.feeds, home.work = split, join, 2
    assert run([home, split, join]) == "home split join home split join"


def test_nodes_of_the_same_depth_take_turns() -> None:
    """As the inputs of a join do."""
    assert run([Ready("a", 0, "q", work=3), Ready("b", 0, "q", work=3)]) == "a b a b a b"


def test_queries_take_turns_whatever_they_have_to_do() -> None:
    """One with much work, and deeper, does not keep the other waiting."""
    much, little = Ready("much", 9, "p", work=100), Ready("little", 0, "q", work=3)
    assert run([much, little], 6) == "much little much little much little"


def test_a_query_that_was_idle_has_no_turns_saved_up() -> None:
    """It gets its turn at once, and then every second one."""
    early, late = Ready("e", 0, "p", work=100), Ready("l", 0, "q")
    strategy = DepthFirst()
    for _ in range(50):
        strategy.choose([early], 0.0)
    late.work = 10
    chosen = [strategy.choose([early, late], 0.0).owners[0] for _ in range(6)]
    assert chosen == ["q", "p", "q", "p", "q", "p"]


def test_a_node_that_works_for_several_queries_counts_for_all_of_them() -> None:
    """A stream's home that two queries read: a third one is not kept back by it."""
    home, third = Ready("home", 9, "p", "q", work=100), Ready("third", 0, "r", work=100)
    assert run([home, third], 4) == "home third home third"


def test_a_query_that_is_gone_is_forgotten() -> None:
    """One of the same name is a new one, and nothing of the former is kept."""
    strategy = DepthFirst()
    gone, other = Ready("gone", 0, "p"), Ready("other", 0, "q")
    for _ in range(3):
        strategy.choose([gone, other], 0.0)
    strategy.forget("p")
    assert gone not in strategy._node_ran
    assert other in strategy._node_ran
    assert strategy.choose([Ready("new", 0, "p"), other], 0.0).owners == ("p",)

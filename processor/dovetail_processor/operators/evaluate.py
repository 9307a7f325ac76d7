"""Filter and projection: below the join on each input, above it on the combinations."""

from __future__ import annotations

from dovetail_processor.expressions import Evaluator
from dovetail_processor.graph.arc import Arc


class Evaluate:
    """Runs `evaluator` on each batch from `source` to `out`."""

    def __init__(self, evaluator: Evaluator, source: Arc, out: Arc) -> None:
        self._evaluator = evaluator
        self._source = source
        self._out = out

    @property
    def ready(self) -> bool:
        """Whether there is a batch and room for it, or the end to pass on."""
        return (len(self._source) > 0 and self._out.has_room) or self._source.exhausted

    @property
    def finished(self) -> bool:
        """Whether the end was passed on."""
        return self._out.ended

    def step(self) -> None:
        """Evaluate one batch, or pass on the end."""
        if self._source.exhausted:
            self._out.end()
        else:
            self._out.offer(self._evaluator.run(self._source.take()))

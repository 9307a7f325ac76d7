"""What a processor is told when it starts, and what each of its workers is told then."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from dovetail_proto.ids import ProcessorId, check_name, worker_names
from dovetail_proto.transport import Security


@dataclass(frozen=True, slots=True)
class ProcessorSettings:
    """What a processor needs to know."""

    name: str
    manager: str  # its control address, host:port
    memory_bytes: int
    data_dir: Path  # for results
    version: str
    listen: str = "127.0.0.1:0"
    advertise: str | None = None  # the host that others dial; None: the one listened on
    security: Security = field(default_factory=Security)
    heartbeat_s: float = 1.0
    roots: tuple[str, ...] = ()  # beside data_dir: where files of streams, results, spill may be
    threads: int = 1  # workers that share the memory

    def of_workers(self) -> list[ProcessorSettings]:
        """The settings of its workers, one by one; ConfigError if they cannot be."""
        check_name("processor", self.name)
        names = worker_names(ProcessorId(self.name), self.threads)
        if len(names) == 1:
            return [self]
        host, _, port = self.listen.rpartition(":")
        return [
            replace(
                self,
                name=name,
                memory_bytes=self.memory_bytes // self.threads,
                data_dir=self.data_dir / name,
                listen=f"{host}:{int(port) + n if int(port) else 0}",
                threads=1,
            )
            for n, name in enumerate(names)
        ]

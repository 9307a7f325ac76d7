from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateStreamRequest(_message.Message):
    __slots__ = ("name", "schema", "path")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    name: str
    schema: bytes
    path: str
    def __init__(self, name: _Optional[str] = ..., schema: _Optional[bytes] = ..., path: _Optional[str] = ...) -> None: ...

class StreamRef(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class StreamStatus(_message.Message):
    __slots__ = ("name", "schema", "rows", "ended", "drained", "home", "address", "path", "created_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    HOME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CREATED_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    schema: bytes
    rows: int
    ended: bool
    drained: bool
    home: str
    address: str
    path: str
    created_s: float
    def __init__(self, name: _Optional[str] = ..., schema: _Optional[bytes] = ..., rows: _Optional[int] = ..., ended: _Optional[bool] = ..., drained: _Optional[bool] = ..., home: _Optional[str] = ..., address: _Optional[str] = ..., path: _Optional[str] = ..., created_s: _Optional[float] = ...) -> None: ...

class Streams(_message.Message):
    __slots__ = ("streams",)
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[StreamStatus]
    def __init__(self, streams: _Optional[_Iterable[_Union[StreamStatus, _Mapping]]] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("name", "sql", "partitions", "weights", "policy", "expected_state_bytes", "results", "counting", "spill", "victims", "push_fraction", "spill_above_ratio", "inactive_after_s", "productivity_half_life_s", "keep_results_s", "keep_results_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    COUNTING_FIELD_NUMBER: _ClassVar[int]
    SPILL_FIELD_NUMBER: _ClassVar[int]
    VICTIMS_FIELD_NUMBER: _ClassVar[int]
    PUSH_FRACTION_FIELD_NUMBER: _ClassVar[int]
    SPILL_ABOVE_RATIO_FIELD_NUMBER: _ClassVar[int]
    INACTIVE_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    PRODUCTIVITY_HALF_LIFE_S_FIELD_NUMBER: _ClassVar[int]
    KEEP_RESULTS_S_FIELD_NUMBER: _ClassVar[int]
    KEEP_RESULTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    sql: str
    partitions: int
    weights: _containers.RepeatedScalarFieldContainer[float]
    policy: str
    expected_state_bytes: int
    results: str
    counting: bool
    spill: str
    victims: str
    push_fraction: float
    spill_above_ratio: float
    inactive_after_s: float
    productivity_half_life_s: float
    keep_results_s: float
    keep_results_bytes: int
    def __init__(self, name: _Optional[str] = ..., sql: _Optional[str] = ..., partitions: _Optional[int] = ..., weights: _Optional[_Iterable[float]] = ..., policy: _Optional[str] = ..., expected_state_bytes: _Optional[int] = ..., results: _Optional[str] = ..., counting: _Optional[bool] = ..., spill: _Optional[str] = ..., victims: _Optional[str] = ..., push_fraction: _Optional[float] = ..., spill_above_ratio: _Optional[float] = ..., inactive_after_s: _Optional[float] = ..., productivity_half_life_s: _Optional[float] = ..., keep_results_s: _Optional[float] = ..., keep_results_bytes: _Optional[int] = ...) -> None: ...

class QueryRef(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DropQueryRequest(_message.Message):
    __slots__ = ("name", "keep")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    name: str
    keep: bool
    def __init__(self, name: _Optional[str] = ..., keep: _Optional[bool] = ...) -> None: ...

class QueryStatus(_message.Message):
    __slots__ = ("name", "state", "cause", "policy", "map_version", "held_bytes", "spilled_bytes", "produced", "phase", "sql", "schema", "partitions", "results", "checksum", "pushes", "spilled_groups", "queued_bytes", "inputs", "instances", "results_place", "counting", "spill", "created_s", "ended_s", "logs", "push_fraction", "spill_above_ratio", "inactive_after_s", "productivity_half_life_s", "cleanup", "warning", "keep_results_s", "keep_results_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPILLED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    SPILLED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    RESULTS_PLACE_FIELD_NUMBER: _ClassVar[int]
    COUNTING_FIELD_NUMBER: _ClassVar[int]
    SPILL_FIELD_NUMBER: _ClassVar[int]
    CREATED_S_FIELD_NUMBER: _ClassVar[int]
    ENDED_S_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    PUSH_FRACTION_FIELD_NUMBER: _ClassVar[int]
    SPILL_ABOVE_RATIO_FIELD_NUMBER: _ClassVar[int]
    INACTIVE_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    PRODUCTIVITY_HALF_LIFE_S_FIELD_NUMBER: _ClassVar[int]
    CLEANUP_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    KEEP_RESULTS_S_FIELD_NUMBER: _ClassVar[int]
    KEEP_RESULTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    cause: str
    policy: str
    map_version: int
    held_bytes: int
    spilled_bytes: int
    produced: int
    phase: str
    sql: str
    schema: bytes
    partitions: int
    results: int
    checksum: int
    pushes: int
    spilled_groups: int
    queued_bytes: int
    inputs: _containers.RepeatedCompositeFieldContainer[InputStatus]
    instances: _containers.RepeatedCompositeFieldContainer[InstanceStatus]
    results_place: str
    counting: bool
    spill: str
    created_s: float
    ended_s: float
    logs: _containers.RepeatedCompositeFieldContainer[LogStatus]
    push_fraction: float
    spill_above_ratio: float
    inactive_after_s: float
    productivity_half_life_s: float
    cleanup: _containers.RepeatedCompositeFieldContainer[CleanupStatus]
    warning: str
    keep_results_s: float
    keep_results_bytes: int
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., cause: _Optional[str] = ..., policy: _Optional[str] = ..., map_version: _Optional[int] = ..., held_bytes: _Optional[int] = ..., spilled_bytes: _Optional[int] = ..., produced: _Optional[int] = ..., phase: _Optional[str] = ..., sql: _Optional[str] = ..., schema: _Optional[bytes] = ..., partitions: _Optional[int] = ..., results: _Optional[int] = ..., checksum: _Optional[int] = ..., pushes: _Optional[int] = ..., spilled_groups: _Optional[int] = ..., queued_bytes: _Optional[int] = ..., inputs: _Optional[_Iterable[_Union[InputStatus, _Mapping]]] = ..., instances: _Optional[_Iterable[_Union[InstanceStatus, _Mapping]]] = ..., results_place: _Optional[str] = ..., counting: _Optional[bool] = ..., spill: _Optional[str] = ..., created_s: _Optional[float] = ..., ended_s: _Optional[float] = ..., logs: _Optional[_Iterable[_Union[LogStatus, _Mapping]]] = ..., push_fraction: _Optional[float] = ..., spill_above_ratio: _Optional[float] = ..., inactive_after_s: _Optional[float] = ..., productivity_half_life_s: _Optional[float] = ..., cleanup: _Optional[_Iterable[_Union[CleanupStatus, _Mapping]]] = ..., warning: _Optional[str] = ..., keep_results_s: _Optional[float] = ..., keep_results_bytes: _Optional[int] = ...) -> None: ...

class StartCleanupRequest(_message.Message):
    __slots__ = ("query", "master", "output", "memory_bytes")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    MASTER_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    query: str
    master: str
    output: str
    memory_bytes: int
    def __init__(self, query: _Optional[str] = ..., master: _Optional[str] = ..., output: _Optional[str] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class CleanupStatus(_message.Message):
    __slots__ = ("query", "state", "master", "output", "stage", "bins_done", "bins", "combinations", "owed", "results", "checksum", "code", "cause", "remedy", "started_s", "ended_s")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MASTER_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    BINS_DONE_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    COMBINATIONS_FIELD_NUMBER: _ClassVar[int]
    OWED_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    STARTED_S_FIELD_NUMBER: _ClassVar[int]
    ENDED_S_FIELD_NUMBER: _ClassVar[int]
    query: str
    state: str
    master: str
    output: str
    stage: str
    bins_done: int
    bins: int
    combinations: int
    owed: int
    results: int
    checksum: int
    code: str
    cause: str
    remedy: str
    started_s: float
    ended_s: float
    def __init__(self, query: _Optional[str] = ..., state: _Optional[str] = ..., master: _Optional[str] = ..., output: _Optional[str] = ..., stage: _Optional[str] = ..., bins_done: _Optional[int] = ..., bins: _Optional[int] = ..., combinations: _Optional[int] = ..., owed: _Optional[int] = ..., results: _Optional[int] = ..., checksum: _Optional[int] = ..., code: _Optional[str] = ..., cause: _Optional[str] = ..., remedy: _Optional[str] = ..., started_s: _Optional[float] = ..., ended_s: _Optional[float] = ...) -> None: ...

class LogStatus(_message.Message):
    __slots__ = ("name", "processor", "address", "run", "rows", "trimmed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_FIELD_NUMBER: _ClassVar[int]
    name: str
    processor: str
    address: str
    run: str
    rows: int
    trimmed: bool
    def __init__(self, name: _Optional[str] = ..., processor: _Optional[str] = ..., address: _Optional[str] = ..., run: _Optional[str] = ..., rows: _Optional[int] = ..., trimmed: _Optional[bool] = ...) -> None: ...

class InputStatus(_message.Message):
    __slots__ = ("alias", "stream", "rows_in")
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    ROWS_IN_FIELD_NUMBER: _ClassVar[int]
    alias: str
    stream: str
    rows_in: int
    def __init__(self, alias: _Optional[str] = ..., stream: _Optional[str] = ..., rows_in: _Optional[int] = ...) -> None: ...

class InstanceStatus(_message.Message):
    __slots__ = ("processor", "stage", "groups", "held_bytes", "spilled_bytes", "produced", "results", "checksum", "pushes", "spilled_groups", "queued_bytes", "peak_state_bytes")
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPILLED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    SPILLED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    processor: str
    stage: str
    groups: int
    held_bytes: int
    spilled_bytes: int
    produced: int
    results: int
    checksum: int
    pushes: int
    spilled_groups: int
    queued_bytes: int
    peak_state_bytes: int
    def __init__(self, processor: _Optional[str] = ..., stage: _Optional[str] = ..., groups: _Optional[int] = ..., held_bytes: _Optional[int] = ..., spilled_bytes: _Optional[int] = ..., produced: _Optional[int] = ..., results: _Optional[int] = ..., checksum: _Optional[int] = ..., pushes: _Optional[int] = ..., spilled_groups: _Optional[int] = ..., queued_bytes: _Optional[int] = ..., peak_state_bytes: _Optional[int] = ...) -> None: ...

class Queries(_message.Message):
    __slots__ = ("queries",)
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    queries: _containers.RepeatedCompositeFieldContainer[QueryStatus]
    def __init__(self, queries: _Optional[_Iterable[_Union[QueryStatus, _Mapping]]] = ...) -> None: ...

class Everything(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProcessorRef(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ProcessorStatus(_message.Message):
    __slots__ = ("name", "state", "memory_limit_bytes", "used_bytes", "groups", "rate", "cause", "address", "incarnation", "held_bytes", "queued_bytes", "rss_bytes", "peak_rss_bytes", "cpu_share", "heard_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_SHARE_FIELD_NUMBER: _ClassVar[int]
    HEARD_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    memory_limit_bytes: int
    used_bytes: int
    groups: int
    rate: float
    cause: str
    address: str
    incarnation: int
    held_bytes: int
    queued_bytes: int
    rss_bytes: int
    peak_rss_bytes: int
    cpu_share: float
    heard_s: float
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., memory_limit_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., groups: _Optional[int] = ..., rate: _Optional[float] = ..., cause: _Optional[str] = ..., address: _Optional[str] = ..., incarnation: _Optional[int] = ..., held_bytes: _Optional[int] = ..., queued_bytes: _Optional[int] = ..., rss_bytes: _Optional[int] = ..., peak_rss_bytes: _Optional[int] = ..., cpu_share: _Optional[float] = ..., heard_s: _Optional[float] = ...) -> None: ...

class ClusterStatus(_message.Message):
    __slots__ = ("epoch", "version", "processors", "name", "started_s")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STARTED_S_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: str
    processors: _containers.RepeatedCompositeFieldContainer[ProcessorStatus]
    name: str
    started_s: float
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[str] = ..., processors: _Optional[_Iterable[_Union[ProcessorStatus, _Mapping]]] = ..., name: _Optional[str] = ..., started_s: _Optional[float] = ...) -> None: ...

class PartitionStatus(_message.Message):
    __slots__ = ("group", "owner", "since_version", "pinned")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SINCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    group: int
    owner: str
    since_version: int
    pinned: bool
    def __init__(self, group: _Optional[int] = ..., owner: _Optional[str] = ..., since_version: _Optional[int] = ..., pinned: _Optional[bool] = ...) -> None: ...

class Partitions(_message.Message):
    __slots__ = ("map_version", "partitions")
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    map_version: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionStatus]
    def __init__(self, map_version: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionStatus, _Mapping]]] = ...) -> None: ...

class MoveStatus(_message.Message):
    __slots__ = ("id", "sender", "receiver", "phase", "outcome", "reason", "failure", "groups", "size_bytes", "started_s", "ended_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STARTED_S_FIELD_NUMBER: _ClassVar[int]
    ENDED_S_FIELD_NUMBER: _ClassVar[int]
    id: str
    sender: str
    receiver: str
    phase: str
    outcome: str
    reason: str
    failure: str
    groups: int
    size_bytes: int
    started_s: float
    ended_s: float
    def __init__(self, id: _Optional[str] = ..., sender: _Optional[str] = ..., receiver: _Optional[str] = ..., phase: _Optional[str] = ..., outcome: _Optional[str] = ..., reason: _Optional[str] = ..., failure: _Optional[str] = ..., groups: _Optional[int] = ..., size_bytes: _Optional[int] = ..., started_s: _Optional[float] = ..., ended_s: _Optional[float] = ...) -> None: ...

class Moves(_message.Message):
    __slots__ = ("moves",)
    MOVES_FIELD_NUMBER: _ClassVar[int]
    moves: _containers.RepeatedCompositeFieldContainer[MoveStatus]
    def __init__(self, moves: _Optional[_Iterable[_Union[MoveStatus, _Mapping]]] = ...) -> None: ...

class AdaptationRecord(_message.Message):
    __slots__ = ("at_s", "policy", "decision", "reason", "admitted", "objection", "numbers", "repeated_times")
    class NumbersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    AT_S_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    OBJECTION_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    REPEATED_TIMES_FIELD_NUMBER: _ClassVar[int]
    at_s: float
    policy: str
    decision: str
    reason: str
    admitted: bool
    objection: str
    numbers: _containers.ScalarMap[str, float]
    repeated_times: int
    def __init__(self, at_s: _Optional[float] = ..., policy: _Optional[str] = ..., decision: _Optional[str] = ..., reason: _Optional[str] = ..., admitted: _Optional[bool] = ..., objection: _Optional[str] = ..., numbers: _Optional[_Mapping[str, float]] = ..., repeated_times: _Optional[int] = ...) -> None: ...

class Adaptations(_message.Message):
    __slots__ = ("adaptations",)
    ADAPTATIONS_FIELD_NUMBER: _ClassVar[int]
    adaptations: _containers.RepeatedCompositeFieldContainer[AdaptationRecord]
    def __init__(self, adaptations: _Optional[_Iterable[_Union[AdaptationRecord, _Mapping]]] = ...) -> None: ...

class MoveGroupsRequest(_message.Message):
    __slots__ = ("query", "groups", "to")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    query: str
    groups: _containers.RepeatedScalarFieldContainer[int]
    to: str
    def __init__(self, query: _Optional[str] = ..., groups: _Optional[_Iterable[int]] = ..., to: _Optional[str] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("query", "groups", "pinned")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    query: str
    groups: _containers.RepeatedScalarFieldContainer[int]
    pinned: bool
    def __init__(self, query: _Optional[str] = ..., groups: _Optional[_Iterable[int]] = ..., pinned: _Optional[bool] = ...) -> None: ...

class RebalanceRequest(_message.Message):
    __slots__ = ("query", "dry_run")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    query: str
    dry_run: bool
    def __init__(self, query: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class SetPolicyRequest(_message.Message):
    __slots__ = ("query", "policy")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    query: str
    policy: str
    def __init__(self, query: _Optional[str] = ..., policy: _Optional[str] = ...) -> None: ...

class EventsSince(_message.Message):
    __slots__ = ("since",)
    SINCE_FIELD_NUMBER: _ClassVar[int]
    since: int
    def __init__(self, since: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("number", "at_s", "kind", "query", "stream", "processor", "move", "text")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    number: int
    at_s: float
    kind: str
    query: str
    stream: str
    processor: str
    move: str
    text: str
    def __init__(self, number: _Optional[int] = ..., at_s: _Optional[float] = ..., kind: _Optional[str] = ..., query: _Optional[str] = ..., stream: _Optional[str] = ..., processor: _Optional[str] = ..., move: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Events(_message.Message):
    __slots__ = ("events", "last", "missed")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    last: int
    missed: int
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., last: _Optional[int] = ..., missed: _Optional[int] = ...) -> None: ...

from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateStreamRequest(_message.Message):
    __slots__ = ("name", "schema")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    name: str
    schema: bytes
    def __init__(self, name: _Optional[str] = ..., schema: _Optional[bytes] = ...) -> None: ...

class StreamName(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class StreamStatus(_message.Message):
    __slots__ = ("name", "schema", "rows", "ended")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    schema: bytes
    rows: int
    ended: bool
    def __init__(self, name: _Optional[str] = ..., schema: _Optional[bytes] = ..., rows: _Optional[int] = ..., ended: _Optional[bool] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("name", "sql", "partitions", "weights", "policy", "expected_state_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    sql: str
    partitions: int
    weights: _containers.RepeatedScalarFieldContainer[float]
    policy: str
    expected_state_bytes: int
    def __init__(self, name: _Optional[str] = ..., sql: _Optional[str] = ..., partitions: _Optional[int] = ..., weights: _Optional[_Iterable[float]] = ..., policy: _Optional[str] = ..., expected_state_bytes: _Optional[int] = ...) -> None: ...

class QueryName(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class QueryStatus(_message.Message):
    __slots__ = ("name", "state", "cause", "policy", "map_version", "held_bytes", "spilled_bytes", "produced")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPILLED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    cause: str
    policy: str
    map_version: int
    held_bytes: int
    spilled_bytes: int
    produced: int
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., cause: _Optional[str] = ..., policy: _Optional[str] = ..., map_version: _Optional[int] = ..., held_bytes: _Optional[int] = ..., spilled_bytes: _Optional[int] = ..., produced: _Optional[int] = ...) -> None: ...

class GetClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProcessorStatus(_message.Message):
    __slots__ = ("name", "state", "memory_limit_bytes", "used_bytes", "groups", "rate")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    memory_limit_bytes: int
    used_bytes: int
    groups: int
    rate: float
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., memory_limit_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., groups: _Optional[int] = ..., rate: _Optional[float] = ...) -> None: ...

class ClusterStatus(_message.Message):
    __slots__ = ("epoch", "version", "processors")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: str
    processors: _containers.RepeatedCompositeFieldContainer[ProcessorStatus]
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[str] = ..., processors: _Optional[_Iterable[_Union[ProcessorStatus, _Mapping]]] = ...) -> None: ...

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

class MoveRequest(_message.Message):
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

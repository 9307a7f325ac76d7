from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ControlEnvelope(_message.Message):
    __slots__ = ("source", "compute_partitions_to_move", "partitions_to_move", "deactivate_partitions", "deactivated", "send_partitions", "received", "reactivate_partitions", "reactivated", "reserve", "reserved", "finish_move", "move_finished", "push_partitions", "pushed", "refused", "join", "heartbeat", "heard", "leave", "stop_query", "query_stopped", "assign")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_PARTITIONS_TO_MOVE_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_TO_MOVE_FIELD_NUMBER: _ClassVar[int]
    DEACTIVATE_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    DEACTIVATED_FIELD_NUMBER: _ClassVar[int]
    SEND_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    REACTIVATE_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REACTIVATED_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    FINISH_MOVE_FIELD_NUMBER: _ClassVar[int]
    MOVE_FINISHED_FIELD_NUMBER: _ClassVar[int]
    PUSH_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    PUSHED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    STOP_QUERY_FIELD_NUMBER: _ClassVar[int]
    QUERY_STOPPED_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_FIELD_NUMBER: _ClassVar[int]
    source: str
    compute_partitions_to_move: ComputePartitionsToMove
    partitions_to_move: PartitionsToMove
    deactivate_partitions: DeactivatePartitions
    deactivated: Deactivated
    send_partitions: SendPartitions
    received: Received
    reactivate_partitions: ReactivatePartitions
    reactivated: Reactivated
    reserve: Reserve
    reserved: Reserved
    finish_move: FinishMove
    move_finished: MoveFinished
    push_partitions: PushPartitions
    pushed: Pushed
    refused: Refused
    join: Join
    heartbeat: Heartbeat
    heard: Heard
    leave: Leave
    stop_query: StopQuery
    query_stopped: QueryStopped
    assign: Assign
    def __init__(self, source: _Optional[str] = ..., compute_partitions_to_move: _Optional[_Union[ComputePartitionsToMove, _Mapping]] = ..., partitions_to_move: _Optional[_Union[PartitionsToMove, _Mapping]] = ..., deactivate_partitions: _Optional[_Union[DeactivatePartitions, _Mapping]] = ..., deactivated: _Optional[_Union[Deactivated, _Mapping]] = ..., send_partitions: _Optional[_Union[SendPartitions, _Mapping]] = ..., received: _Optional[_Union[Received, _Mapping]] = ..., reactivate_partitions: _Optional[_Union[ReactivatePartitions, _Mapping]] = ..., reactivated: _Optional[_Union[Reactivated, _Mapping]] = ..., reserve: _Optional[_Union[Reserve, _Mapping]] = ..., reserved: _Optional[_Union[Reserved, _Mapping]] = ..., finish_move: _Optional[_Union[FinishMove, _Mapping]] = ..., move_finished: _Optional[_Union[MoveFinished, _Mapping]] = ..., push_partitions: _Optional[_Union[PushPartitions, _Mapping]] = ..., pushed: _Optional[_Union[Pushed, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., join: _Optional[_Union[Join, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., heard: _Optional[_Union[Heard, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., stop_query: _Optional[_Union[StopQuery, _Mapping]] = ..., query_stopped: _Optional[_Union[QueryStopped, _Mapping]] = ..., assign: _Optional[_Union[Assign, _Mapping]] = ...) -> None: ...

class MoveRef(_message.Message):
    __slots__ = ("query", "epoch", "move", "oldest_open")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_OPEN_FIELD_NUMBER: _ClassVar[int]
    query: str
    epoch: int
    move: str
    oldest_open: str
    def __init__(self, query: _Optional[str] = ..., epoch: _Optional[int] = ..., move: _Optional[str] = ..., oldest_open: _Optional[str] = ...) -> None: ...

class ComputePartitionsToMove(_message.Message):
    __slots__ = ("ref", "want_bytes", "groups", "exclude")
    REF_FIELD_NUMBER: _ClassVar[int]
    WANT_BYTES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FIELD_NUMBER: _ClassVar[int]
    ref: MoveRef
    want_bytes: int
    groups: _containers.RepeatedScalarFieldContainer[int]
    exclude: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ref: _Optional[_Union[MoveRef, _Mapping]] = ..., want_bytes: _Optional[int] = ..., groups: _Optional[_Iterable[int]] = ..., exclude: _Optional[_Iterable[int]] = ...) -> None: ...

class PartitionsToMove(_message.Message):
    __slots__ = ("ref", "groups", "sizes")
    REF_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    ref: MoveRef
    groups: _containers.RepeatedScalarFieldContainer[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ref: _Optional[_Union[MoveRef, _Mapping]] = ..., groups: _Optional[_Iterable[int]] = ..., sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class DeactivatePartitions(_message.Message):
    __slots__ = ("ref", "chunk", "groups", "sender", "splits")
    REF_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    ref: MoveRef
    chunk: int
    groups: _containers.RepeatedScalarFieldContainer[int]
    sender: str
    splits: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ref: _Optional[_Union[MoveRef, _Mapping]] = ..., chunk: _Optional[int] = ..., groups: _Optional[_Iterable[int]] = ..., sender: _Optional[str] = ..., splits: _Optional[_Iterable[str]] = ...) -> None: ...

class Deactivated(_message.Message):
    __slots__ = ("ref", "chunk")
    REF_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    ref: MoveRef
    chunk: int
    def __init__(self, ref: _Optional[_Union[MoveRef, _Mapping]] = ..., chunk: _Optional[int] = ...) -> None: ...

class SendPartitions(_message.Message):
    __slots__ = ("ref", "chunk", "groups", "receiver")
    REF_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    ref: MoveRef
    chunk: int
    groups: _containers.RepeatedScalarFieldContainer[int]
    receiver: str
    def __init__(self, ref: _Optional[_Union[MoveRef, _Mapping]] = ..., chunk: _Optional[int] = ..., groups: _Optional[_Iterable[int]] = ..., receiver: _Optional[str] = ...) -> None: ...

class Received(_message.Message):
    __slots__ = ("ref", "chunk", "size_bytes")
    REF_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ref: MoveRef
    chunk: int
    size_bytes: int
    def __init__(self, ref: _Optional[_Union[MoveRef, _Mapping]] = ..., chunk: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class GroupOwner(_message.Message):
    __slots__ = ("group", "owner")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    group: int
    owner: str
    def __init__(self, group: _Optional[int] = ..., owner: _Optional[str] = ...) -> None: ...

class MapPatch(_message.Message):
    __slots__ = ("query", "from_version", "to_version", "changes")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    FROM_VERSION_FIELD_NUMBER: _ClassVar[int]
    TO_VERSION_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    query: str
    from_version: int
    to_version: int
    changes: _containers.RepeatedCompositeFieldContainer[GroupOwner]
    def __init__(self, query: _Optional[str] = ..., from_version: _Optional[int] = ..., to_version: _Optional[int] = ..., changes: _Optional[_Iterable[_Union[GroupOwner, _Mapping]]] = ...) -> None: ...

class ReactivatePartitions(_message.Message):
    __slots__ = ("ref", "chunk", "groups", "owner", "patch")
    REF_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PATCH_FIELD_NUMBER: _ClassVar[int]
    ref: MoveRef
    chunk: int
    groups: _containers.RepeatedScalarFieldContainer[int]
    owner: str
    patch: MapPatch
    def __init__(self, ref: _Optional[_Union[MoveRef, _Mapping]] = ..., chunk: _Optional[int] = ..., groups: _Optional[_Iterable[int]] = ..., owner: _Optional[str] = ..., patch: _Optional[_Union[MapPatch, _Mapping]] = ...) -> None: ...

class Reactivated(_message.Message):
    __slots__ = ("ref", "chunk", "map_version")
    REF_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    ref: MoveRef
    chunk: int
    map_version: int
    def __init__(self, ref: _Optional[_Union[MoveRef, _Mapping]] = ..., chunk: _Optional[int] = ..., map_version: _Optional[int] = ...) -> None: ...

class Reserve(_message.Message):
    __slots__ = ("ref", "size_bytes")
    REF_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ref: MoveRef
    size_bytes: int
    def __init__(self, ref: _Optional[_Union[MoveRef, _Mapping]] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class Reserved(_message.Message):
    __slots__ = ("ref",)
    REF_FIELD_NUMBER: _ClassVar[int]
    ref: MoveRef
    def __init__(self, ref: _Optional[_Union[MoveRef, _Mapping]] = ...) -> None: ...

class FinishMove(_message.Message):
    __slots__ = ("ref",)
    REF_FIELD_NUMBER: _ClassVar[int]
    ref: MoveRef
    def __init__(self, ref: _Optional[_Union[MoveRef, _Mapping]] = ...) -> None: ...

class MoveFinished(_message.Message):
    __slots__ = ("ref",)
    REF_FIELD_NUMBER: _ClassVar[int]
    ref: MoveRef
    def __init__(self, ref: _Optional[_Union[MoveRef, _Mapping]] = ...) -> None: ...

class PushPartitions(_message.Message):
    __slots__ = ("query", "epoch", "order", "size_bytes")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    query: str
    epoch: int
    order: int
    size_bytes: int
    def __init__(self, query: _Optional[str] = ..., epoch: _Optional[int] = ..., order: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class Pushed(_message.Message):
    __slots__ = ("query", "epoch", "order", "size_bytes")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    query: str
    epoch: int
    order: int
    size_bytes: int
    def __init__(self, query: _Optional[str] = ..., epoch: _Optional[int] = ..., order: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("ref", "chunk", "refused", "domain", "message", "epoch", "map_version")
    REF_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    ref: MoveRef
    chunk: int
    refused: str
    domain: str
    message: str
    epoch: int
    map_version: int
    def __init__(self, ref: _Optional[_Union[MoveRef, _Mapping]] = ..., chunk: _Optional[int] = ..., refused: _Optional[str] = ..., domain: _Optional[str] = ..., message: _Optional[str] = ..., epoch: _Optional[int] = ..., map_version: _Optional[int] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("processor", "incarnation", "version", "memory_limit_bytes", "address")
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    processor: str
    incarnation: int
    version: str
    memory_limit_bytes: int
    address: str
    def __init__(self, processor: _Optional[str] = ..., incarnation: _Optional[int] = ..., version: _Optional[str] = ..., memory_limit_bytes: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class QueryLoad(_message.Message):
    __slots__ = ("query", "groups", "held_bytes", "spilled_bytes", "produced", "rows_in", "results", "checksum", "pushes", "spilled_groups", "queued_bytes", "peak_state_bytes", "stage", "cause", "pushed_bytes", "state_limit_bytes")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPILLED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_FIELD_NUMBER: _ClassVar[int]
    ROWS_IN_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    SPILLED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    PUSHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    query: str
    groups: int
    held_bytes: int
    spilled_bytes: int
    produced: int
    rows_in: _containers.RepeatedScalarFieldContainer[int]
    results: int
    checksum: int
    pushes: int
    spilled_groups: int
    queued_bytes: int
    peak_state_bytes: int
    stage: str
    cause: str
    pushed_bytes: int
    state_limit_bytes: int
    def __init__(self, query: _Optional[str] = ..., groups: _Optional[int] = ..., held_bytes: _Optional[int] = ..., spilled_bytes: _Optional[int] = ..., produced: _Optional[int] = ..., rows_in: _Optional[_Iterable[int]] = ..., results: _Optional[int] = ..., checksum: _Optional[int] = ..., pushes: _Optional[int] = ..., spilled_groups: _Optional[int] = ..., queued_bytes: _Optional[int] = ..., peak_state_bytes: _Optional[int] = ..., stage: _Optional[str] = ..., cause: _Optional[str] = ..., pushed_bytes: _Optional[int] = ..., state_limit_bytes: _Optional[int] = ...) -> None: ...

class StreamLoad(_message.Message):
    __slots__ = ("stream", "rows", "ended", "handover", "rows_left")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    HANDOVER_FIELD_NUMBER: _ClassVar[int]
    ROWS_LEFT_FIELD_NUMBER: _ClassVar[int]
    stream: str
    rows: int
    ended: bool
    handover: str
    rows_left: int
    def __init__(self, stream: _Optional[str] = ..., rows: _Optional[int] = ..., ended: _Optional[bool] = ..., handover: _Optional[str] = ..., rows_left: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("processor", "incarnation", "used_bytes", "loads", "adapting", "assigned", "streams", "rss_bytes", "peak_rss_bytes", "cpu_share", "room_bytes")
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    ADAPTING_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_SHARE_FIELD_NUMBER: _ClassVar[int]
    ROOM_BYTES_FIELD_NUMBER: _ClassVar[int]
    processor: str
    incarnation: int
    used_bytes: int
    loads: _containers.RepeatedCompositeFieldContainer[QueryLoad]
    adapting: bool
    assigned: int
    streams: _containers.RepeatedCompositeFieldContainer[StreamLoad]
    rss_bytes: int
    peak_rss_bytes: int
    cpu_share: float
    room_bytes: int
    def __init__(self, processor: _Optional[str] = ..., incarnation: _Optional[int] = ..., used_bytes: _Optional[int] = ..., loads: _Optional[_Iterable[_Union[QueryLoad, _Mapping]]] = ..., adapting: _Optional[bool] = ..., assigned: _Optional[int] = ..., streams: _Optional[_Iterable[_Union[StreamLoad, _Mapping]]] = ..., rss_bytes: _Optional[int] = ..., peak_rss_bytes: _Optional[int] = ..., cpu_share: _Optional[float] = ..., room_bytes: _Optional[int] = ...) -> None: ...

class Assign(_message.Message):
    __slots__ = ("epoch", "version", "document")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: int
    document: str
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[int] = ..., document: _Optional[str] = ...) -> None: ...

class Heard(_message.Message):
    __slots__ = ("epoch", "processor", "incarnation", "member")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    processor: str
    incarnation: int
    member: bool
    def __init__(self, epoch: _Optional[int] = ..., processor: _Optional[str] = ..., incarnation: _Optional[int] = ..., member: _Optional[bool] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("processor", "incarnation", "successor", "ends")
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SUCCESSOR_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    processor: str
    incarnation: int
    successor: str
    ends: bool
    def __init__(self, processor: _Optional[str] = ..., incarnation: _Optional[int] = ..., successor: _Optional[str] = ..., ends: _Optional[bool] = ...) -> None: ...

class StopQuery(_message.Message):
    __slots__ = ("query", "epoch", "cause")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    query: str
    epoch: int
    cause: str
    def __init__(self, query: _Optional[str] = ..., epoch: _Optional[int] = ..., cause: _Optional[str] = ...) -> None: ...

class QueryStopped(_message.Message):
    __slots__ = ("query", "epoch")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    query: str
    epoch: int
    def __init__(self, query: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

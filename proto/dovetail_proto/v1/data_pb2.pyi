from dovetail_proto.v1 import control_pb2 as _control_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TupleBatch(_message.Message):
    __slots__ = ("split", "first", "offsets", "size_bytes", "rows", "payload")
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    split: str
    first: int
    offsets: bytes
    size_bytes: int
    rows: int
    payload: bytes
    def __init__(self, split: _Optional[str] = ..., first: _Optional[int] = ..., offsets: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., rows: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class EndOfMovedPartitions(_message.Message):
    __slots__ = ("query", "move", "chunk", "split")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    query: str
    move: str
    chunk: int
    split: str
    def __init__(self, query: _Optional[str] = ..., move: _Optional[str] = ..., chunk: _Optional[int] = ..., split: _Optional[str] = ...) -> None: ...

class EndOfInput(_message.Message):
    __slots__ = ("query", "split")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    query: str
    split: str
    def __init__(self, query: _Optional[str] = ..., split: _Optional[str] = ...) -> None: ...

class LinkFrame(_message.Message):
    __slots__ = ("number", "batch", "end_of_moved_partitions", "end_of_input", "split")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    END_OF_MOVED_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    END_OF_INPUT_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    number: int
    batch: TupleBatch
    end_of_moved_partitions: EndOfMovedPartitions
    end_of_input: EndOfInput
    split: str
    def __init__(self, number: _Optional[int] = ..., batch: _Optional[_Union[TupleBatch, _Mapping]] = ..., end_of_moved_partitions: _Optional[_Union[EndOfMovedPartitions, _Mapping]] = ..., end_of_input: _Optional[_Union[EndOfInput, _Mapping]] = ..., split: _Optional[str] = ...) -> None: ...

class LinkAck(_message.Message):
    __slots__ = ("query", "split", "number", "allowed_bytes", "done_number")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DONE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    query: str
    split: str
    number: int
    allowed_bytes: int
    done_number: int
    def __init__(self, query: _Optional[str] = ..., split: _Optional[str] = ..., number: _Optional[int] = ..., allowed_bytes: _Optional[int] = ..., done_number: _Optional[int] = ...) -> None: ...

class ReceivePartitions(_message.Message):
    __slots__ = ("ref", "chunk", "groups", "size_bytes", "payload")
    REF_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ref: _control_pb2.MoveRef
    chunk: int
    groups: _containers.RepeatedScalarFieldContainer[int]
    size_bytes: int
    payload: bytes
    def __init__(self, ref: _Optional[_Union[_control_pb2.MoveRef, _Mapping]] = ..., chunk: _Optional[int] = ..., groups: _Optional[_Iterable[int]] = ..., size_bytes: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class PartitionsPart(_message.Message):
    __slots__ = ("header", "more")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    header: ReceivePartitions
    more: bytes
    def __init__(self, header: _Optional[_Union[ReceivePartitions, _Mapping]] = ..., more: _Optional[bytes] = ...) -> None: ...

class PartitionsTaken(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class IngestBatch(_message.Message):
    __slots__ = ("stream", "source", "sequence", "payload", "over", "rows_left")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    ROWS_LEFT_FIELD_NUMBER: _ClassVar[int]
    stream: str
    source: str
    sequence: int
    payload: bytes
    over: bool
    rows_left: int
    def __init__(self, stream: _Optional[str] = ..., source: _Optional[str] = ..., sequence: _Optional[int] = ..., payload: _Optional[bytes] = ..., over: _Optional[bool] = ..., rows_left: _Optional[int] = ...) -> None: ...

class IngestAck(_message.Message):
    __slots__ = ("sequence", "rows", "readers")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    rows: int
    readers: int
    def __init__(self, sequence: _Optional[int] = ..., rows: _Optional[int] = ..., readers: _Optional[int] = ...) -> None: ...

class QueryAt(_message.Message):
    __slots__ = ("query",)
    QUERY_FIELD_NUMBER: _ClassVar[int]
    query: str
    def __init__(self, query: _Optional[str] = ...) -> None: ...

class Joined(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    def __init__(self, rows: _Optional[int] = ...) -> None: ...

class ReadResultsRequest(_message.Message):
    __slots__ = ("query", "segment", "row", "follow", "log", "run", "rows", "trimmed")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_FIELD_NUMBER: _ClassVar[int]
    query: str
    segment: int
    row: int
    follow: bool
    log: str
    run: str
    rows: int
    trimmed: bool
    def __init__(self, query: _Optional[str] = ..., segment: _Optional[int] = ..., row: _Optional[int] = ..., follow: _Optional[bool] = ..., log: _Optional[str] = ..., run: _Optional[str] = ..., rows: _Optional[int] = ..., trimmed: _Optional[bool] = ...) -> None: ...

class ResultBatch(_message.Message):
    __slots__ = ("segment", "row", "payload", "ended")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    segment: int
    row: int
    payload: bytes
    ended: bool
    def __init__(self, segment: _Optional[int] = ..., row: _Optional[int] = ..., payload: _Optional[bytes] = ..., ended: _Optional[bool] = ...) -> None: ...

class LogPiece(_message.Message):
    __slots__ = ("query", "run", "log", "segment", "start", "size_bytes", "checksum", "payload")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    query: str
    run: str
    log: str
    segment: int
    start: int
    size_bytes: int
    checksum: int
    payload: bytes
    def __init__(self, query: _Optional[str] = ..., run: _Optional[str] = ..., log: _Optional[str] = ..., segment: _Optional[int] = ..., start: _Optional[int] = ..., size_bytes: _Optional[int] = ..., checksum: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class LogPieceKept(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

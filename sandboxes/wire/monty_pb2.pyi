# mypy: disable-error-code="type-arg"
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Limits(_message.Message):
    __slots__ = ("memory_bytes", "gc_interval", "recursion_depth", "suspensions", "feed_us", "turn_us", "sleep_us")
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GC_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    RECURSION_DEPTH_FIELD_NUMBER: _ClassVar[int]
    SUSPENSIONS_FIELD_NUMBER: _ClassVar[int]
    FEED_US_FIELD_NUMBER: _ClassVar[int]
    TURN_US_FIELD_NUMBER: _ClassVar[int]
    SLEEP_US_FIELD_NUMBER: _ClassVar[int]
    memory_bytes: int
    gc_interval: int
    recursion_depth: int
    suspensions: int
    feed_us: int
    turn_us: int
    sleep_us: int
    def __init__(self, memory_bytes: _Optional[int] = ..., gc_interval: _Optional[int] = ..., recursion_depth: _Optional[int] = ..., suspensions: _Optional[int] = ..., feed_us: _Optional[int] = ..., turn_us: _Optional[int] = ..., sleep_us: _Optional[int] = ...) -> None: ...

class Configure(_message.Message):
    __slots__ = ("script_name", "limits", "type_check", "ephemeral", "profile")
    SCRIPT_NAME_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    TYPE_CHECK_FIELD_NUMBER: _ClassVar[int]
    EPHEMERAL_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    script_name: str
    limits: Limits
    type_check: bool
    ephemeral: int
    profile: str
    def __init__(self, script_name: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., type_check: _Optional[bool] = ..., ephemeral: _Optional[int] = ..., profile: _Optional[str] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: bytes
    def __init__(self, state: _Optional[bytes] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("configure", "load")
    CONFIGURE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    configure: Configure
    load: Load
    def __init__(self, configure: _Optional[_Union[Configure, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class Exception(_message.Message):
    __slots__ = ("type", "message")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("exception",)
    EXCEPTION_FIELD_NUMBER: _ClassVar[int]
    exception: Exception
    def __init__(self, exception: _Optional[_Union[Exception, _Mapping]] = ...) -> None: ...

class DumpResult(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: bytes
    def __init__(self, state: _Optional[bytes] = ...) -> None: ...

class FatalError(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...

class Shutdown(_message.Message):
    __slots__ = ("dump",)
    DUMP_FIELD_NUMBER: _ClassVar[int]
    dump: bytes
    def __init__(self, dump: _Optional[bytes] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("error", "dump_result", "fatal_error", "shutdown", "execution_us", "script_name", "feed_us", "session_id")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DUMP_RESULT_FIELD_NUMBER: _ClassVar[int]
    FATAL_ERROR_FIELD_NUMBER: _ClassVar[int]
    SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_US_FIELD_NUMBER: _ClassVar[int]
    SCRIPT_NAME_FIELD_NUMBER: _ClassVar[int]
    FEED_US_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    error: Error
    dump_result: DumpResult
    fatal_error: FatalError
    shutdown: Shutdown
    execution_us: int
    script_name: str
    feed_us: int
    session_id: bytes
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ..., dump_result: _Optional[_Union[DumpResult, _Mapping]] = ..., fatal_error: _Optional[_Union[FatalError, _Mapping]] = ..., shutdown: _Optional[_Union[Shutdown, _Mapping]] = ..., execution_us: _Optional[int] = ..., script_name: _Optional[str] = ..., feed_us: _Optional[int] = ..., session_id: _Optional[bytes] = ...) -> None: ...

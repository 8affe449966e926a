"""Holdfast: background jobs that commit with your data."""

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast.app import Holdfast
from holdfast.client.chain_handle import Chain
from holdfast.client.transactions import Transaction
from holdfast.database.records import Record
from holdfast.errors import (
    BlockerCycle,
    BulkInterrupted,
    Busy,
    ChainCancelled,
    ChainFailed,
    ChainNotFound,
    Conflict,
    CursorExpired,
    DeliveryNotFound,
    DuplicateTask,
    FilterRequired,
    HoldfastError,
    IdTaken,
    InvalidAddress,
    InvalidCursor,
    InvalidFilter,
    InvalidId,
    InvalidInput,
    InvalidOutput,
    InvalidSettings,
    InvalidSignature,
    JobNotFound,
    JournalFull,
    LaneNotFound,
    LeaseLost,
    MissingLibrary,
    Misuse,
    NoResult,
    NotFound,
    NotMigrated,
    StateConflict,
    StatusConflict,
    StillReferenced,
    StoreError,
    SubscriptionNotFound,
    TooMany,
    TransactionBroken,
    TransactionRequired,
    TransactionTimeout,
    Unavailable,
    UniqueConflict,
    UnknownMethod,
    UnknownOutcome,
    UnknownTask,
    Unreadable,
    UsageError,
    WaitTimeout,
    WrongConnection,
    WrongTask,
)
from holdfast.journals import JournalEntry
from holdfast.models import (
    CancelAnswer,
    Delivery,
    Event,
    Job,
    JobError,
    JobEvent,
    LaneInfo,
    Page,
    PauseAnswer,
    Phase,
    PhaseStatus,
    RunningJob,
    Searched,
    Subscription,
    Unique,
)
from holdfast.outcomes import Fail, Pause, Reschedule, Retry
from holdfast.states import State, Status
from holdfast.tasks.calls import Call
from holdfast.tasks.registry import Tasks
from holdfast.tasks.task import Task
from holdfast.version import VERSION

if TYPE_CHECKING:
    from holdfast.bulks import BulkResult
    from holdfast.client.outside_completion import Completing
    from holdfast.explanations import Explanation, QueueExplanation, Reason, Remedy
    from holdfast.figures import Overview, Series
    from holdfast.inventory import QueueInfo, TaskInfo, WorkerInfo
    from holdfast.questions import Ask, DeadLetter, Failure, Halt, PausedJob, Question
    from holdfast.retention import Retained, Retention, RetentionCount
    from holdfast.settings import Settings
    from holdfast.worker.attempts.blocks import CompletingTransaction
    from holdfast.worker.attempts.context import Blocker, Context
    from holdfast.worker.health import Health

__version__ = VERSION

__all__ = [
    "Ask",
    "Blocker",
    "BlockerCycle",
    "BulkInterrupted",
    "BulkResult",
    "Busy",
    "Call",
    "CancelAnswer",
    "Chain",
    "ChainCancelled",
    "ChainFailed",
    "ChainNotFound",
    "Completing",
    "CompletingTransaction",
    "Conflict",
    "Context",
    "CursorExpired",
    "DeadLetter",
    "Delivery",
    "DeliveryNotFound",
    "DuplicateTask",
    "Event",
    "Explanation",
    "Fail",
    "Failure",
    "FilterRequired",
    "Halt",
    "Health",
    "Holdfast",
    "HoldfastError",
    "IdTaken",
    "InvalidAddress",
    "InvalidCursor",
    "InvalidFilter",
    "InvalidId",
    "InvalidInput",
    "InvalidOutput",
    "InvalidSettings",
    "InvalidSignature",
    "Job",
    "JobError",
    "JobEvent",
    "JobNotFound",
    "JournalEntry",
    "JournalFull",
    "LaneInfo",
    "LaneNotFound",
    "LeaseLost",
    "MissingLibrary",
    "Misuse",
    "NoResult",
    "NotFound",
    "NotMigrated",
    "Overview",
    "Page",
    "Pause",
    "PauseAnswer",
    "PausedJob",
    "Phase",
    "PhaseStatus",
    "Question",
    "QueueExplanation",
    "QueueInfo",
    "Reason",
    "Record",
    "Remedy",
    "Reschedule",
    "Retained",
    "Retention",
    "RetentionCount",
    "Retry",
    "RunningJob",
    "Searched",
    "Series",
    "Settings",
    "State",
    "StateConflict",
    "Status",
    "StatusConflict",
    "StillReferenced",
    "StoreError",
    "Subscription",
    "SubscriptionNotFound",
    "Task",
    "TaskInfo",
    "Tasks",
    "TooMany",
    "Transaction",
    "TransactionBroken",
    "TransactionRequired",
    "TransactionTimeout",
    "Unavailable",
    "Unique",
    "UniqueConflict",
    "UnknownMethod",
    "UnknownOutcome",
    "UnknownTask",
    "Unreadable",
    "UsageError",
    "WaitTimeout",
    "WorkerInfo",
    "WrongConnection",
    "WrongTask",
]

LATER = {
    "Ask": "holdfast.questions",
    "Blocker": "holdfast.worker.attempts.context",
    "BulkResult": "holdfast.bulks",
    "Completing": "holdfast.client.outside_completion",
    "CompletingTransaction": "holdfast.worker.attempts.blocks",
    "Context": "holdfast.worker.attempts.context",
    "DeadLetter": "holdfast.questions",
    "Failure": "holdfast.questions",
    "Halt": "holdfast.questions",
    **dict.fromkeys(("Explanation", "QueueExplanation", "Reason", "Remedy"), "holdfast.explanations"),
    "Health": "holdfast.worker.health",
    "PausedJob": "holdfast.questions",
    "Question": "holdfast.questions",
    "Overview": "holdfast.figures",
    "Retained": "holdfast.retention",
    "Retention": "holdfast.retention",
    "RetentionCount": "holdfast.retention",
    "QueueInfo": "holdfast.inventory",
    "Series": "holdfast.figures",
    "Settings": "holdfast.settings",
    "TaskInfo": "holdfast.inventory",
    "WorkerInfo": "holdfast.inventory",
}
"""Where the names are that are imported when somebody asks for them: a program that only starts jobs needs none."""


def __getattr__(name: str) -> object:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(import_module(LATER[name]), name)
    return globals()[name]

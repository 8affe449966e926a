"""Holdfast: background jobs that commit with your data."""

from holdfast.app import Holdfast
from holdfast.calls import Call
from holdfast.completing import Completing
from holdfast.errors import (
    BlockerCycle,
    Busy,
    ChainCancelled,
    ChainFailed,
    ChainNotFound,
    Conflict,
    DuplicateTask,
    HoldfastError,
    InvalidId,
    InvalidInput,
    InvalidOutput,
    InvalidSettings,
    JobNotFound,
    LaneNotFound,
    LeaseLost,
    Misuse,
    NoResult,
    NotFound,
    NotMigrated,
    StatusConflict,
    StillReferenced,
    StoreError,
    TransactionBroken,
    TransactionRequired,
    TransactionTimeout,
    Unavailable,
    UniqueConflict,
    UnknownOutcome,
    UnknownTask,
    UsageError,
    WaitTimeout,
    WrongConnection,
    WrongTask,
)
from holdfast.models import CancelAnswer, Job, LaneInfo, Page, PauseAnswer, Unique
from holdfast.outcomes import Fail, Pause, Reschedule, Retry
from holdfast.results import Chain
from holdfast.settings import Settings
from holdfast.states import State, Status
from holdfast.store.statements import Record
from holdfast.tasks import Task, Tasks
from holdfast.transactions import Transaction
from holdfast.worker.block_faces import CompletingTransaction
from holdfast.worker.context import Blocker, Context
from holdfast.worker.health import Health

__version__ = "0.1.0"

__all__ = [
    "Blocker",
    "BlockerCycle",
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
    "DuplicateTask",
    "Fail",
    "Health",
    "Holdfast",
    "HoldfastError",
    "InvalidId",
    "InvalidInput",
    "InvalidOutput",
    "InvalidSettings",
    "Job",
    "JobNotFound",
    "LaneInfo",
    "LaneNotFound",
    "LeaseLost",
    "Misuse",
    "NoResult",
    "NotFound",
    "NotMigrated",
    "Page",
    "Pause",
    "PauseAnswer",
    "Record",
    "Reschedule",
    "Retry",
    "Settings",
    "State",
    "Status",
    "StatusConflict",
    "StillReferenced",
    "StoreError",
    "Task",
    "Tasks",
    "Transaction",
    "TransactionBroken",
    "TransactionRequired",
    "TransactionTimeout",
    "Unavailable",
    "Unique",
    "UniqueConflict",
    "UnknownOutcome",
    "UnknownTask",
    "UsageError",
    "WaitTimeout",
    "WrongConnection",
    "WrongTask",
]

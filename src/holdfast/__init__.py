"""Holdfast: background jobs that commit with your data."""

from holdfast.app import Holdfast
from holdfast.calls import Call
from holdfast.errors import (
    BlockerCycle,
    Busy,
    ChainNotFound,
    Conflict,
    DuplicateTask,
    HoldfastError,
    InvalidId,
    InvalidInput,
    InvalidOutput,
    InvalidSettings,
    JobNotFound,
    Misuse,
    NotFound,
    NotMigrated,
    StillReferenced,
    StoreError,
    TransactionRequired,
    Unavailable,
    UnknownOutcome,
    UnknownTask,
    UsageError,
    WrongConnection,
    WrongTask,
)
from holdfast.models import Chain, Job, Page, Unique
from holdfast.settings import Settings
from holdfast.states import State, Status
from holdfast.tasks import Task, Tasks
from holdfast.worker.context import Context

__version__ = "0.1.0"

__all__ = [
    "BlockerCycle",
    "Busy",
    "Call",
    "Chain",
    "ChainNotFound",
    "Conflict",
    "Context",
    "DuplicateTask",
    "Holdfast",
    "HoldfastError",
    "InvalidId",
    "InvalidInput",
    "InvalidOutput",
    "InvalidSettings",
    "Job",
    "JobNotFound",
    "Misuse",
    "NotFound",
    "NotMigrated",
    "Page",
    "Settings",
    "State",
    "Status",
    "StillReferenced",
    "StoreError",
    "Task",
    "Tasks",
    "TransactionRequired",
    "Unavailable",
    "Unique",
    "UnknownOutcome",
    "UnknownTask",
    "UsageError",
    "WrongConnection",
    "WrongTask",
]

"""The application whose handlers are the contract's: what is registered, and what wraps every attempt of its worker."""

from tests.worker.runners import test_blocks_by_runner as test_blocks
from tests.worker.runners import test_claiming, test_ends, test_middleware, test_steps, test_stopping
from tests.worker.runners import test_journals_by_runner as test_journals
from tests.worker.runners import test_losing_by_runner as test_losing
from tests.worker.runners.behaviours import IN_CHILDREN, TASKS

POSTGRES = "HOLDFAST_RUNNERS_POSTGRES"

BODIES = (test_blocks, test_claiming, test_ends, test_journals, test_losing, test_middleware, test_steps, test_stopping)
"""The modules whose bodies register themselves when they are imported."""
REGISTRIES = (TASKS, IN_CHILDREN, test_middleware.LAYERED)
MIDDLEWARE = (test_middleware.by_worker, test_middleware.by_worker_in_thread)

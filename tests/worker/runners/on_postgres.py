"""The application on PostgreSQL, as a worker and its children import it."""

import os

from holdfast import Holdfast
from tests.worker.runners.application import POSTGRES, REGISTRIES
from tests.worker.runners.behaviours import FACES

hf = FACES["postgres"] = Holdfast(os.environ[POSTGRES], tasks=REGISTRIES)

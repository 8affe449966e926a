"""The application on SQLite, as a worker and its children import it."""

from holdfast import Holdfast
from tests.worker.runners.application import REGISTRIES
from tests.worker.runners.behaviours import FACES
from tests.worker.runners.notes import place

hf = FACES["sqlite"] = Holdfast(str(place() / "jobs.db"), tasks=REGISTRIES)

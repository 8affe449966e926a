"""An application that cannot be imported while a file says so."""

import os
from pathlib import Path

if Path(os.environ["HOLDFAST_BROKEN"]).exists():
    raise RuntimeError("the new release is half there")

from tests.worker.children.application import hf

__all__ = ["hf"]

"""What a child process of `manage.py holdfast_worker` asks for: `hf`, the Holdfast of the project, set up first."""

from __future__ import annotations

import django

from holdfast.app import Holdfast
from holdfast.integrations.django.project import holdfast


def __getattr__(name: str) -> Holdfast:
    if name != "hf":
        raise AttributeError(name)
    django.setup()
    return holdfast()

"""Holdfast in a FastAPI application: the lifespan of `holdfast.integrations.starlette`, and a dependency.

app = FastAPI(lifespan=lifespan(hf, worker=True))

@app.post("/greetings")
async def start_greeting(name: str, hf: AppHoldfast) -> UUID:
    return (await hf.start(greet(name=name))).id
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, TypeAlias

from holdfast.errors import MissingLibrary

if find_spec("fastapi") is None:
    raise MissingLibrary("holdfast.integrations.fastapi", "fastapi", "fastapi")

from fastapi import Depends

from holdfast.app import Holdfast
from holdfast.integrations.starlette import Lifespan, get_holdfast, lifespan

__all__ = ["AppHoldfast", "Lifespan", "get_holdfast", "lifespan"]

AppHoldfast: TypeAlias = Annotated[Holdfast, Depends(get_holdfast)]
"""The type of an endpoint's parameter that is given the application's Holdfast, open."""

"""Who runs a command: what the audit says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.sync import BlockingHoldfast


def in_my_name(command: Callable[..., None]) -> Callable[..., None]:
    """Give *command* the options by which the audit tells who runs it, and why."""
    options = (
        click.option("--by", help="Record who does this.  [default: your login, as name@machine]"),
        click.option("--why", help="Record the reason."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def acting(face: BlockingHoldfast, by: str | None, why: str | None) -> BlockingHoldfast:
    """Give *face* for what the person does who runs the command."""
    return face.acting(by=by or login(), why=why)


def login() -> str:
    """Name the operating system's user and the machine."""
    import getpass
    import os
    import socket

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container may run as a number that has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"

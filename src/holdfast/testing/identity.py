"""As whom a PostgreSQL server runs: never as root, and as somebody the system has a name for."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Identity:
    """How to start a program as somebody: words in front of its command, and options for `Popen`."""

    prefix: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def uid(self) -> int | None:
        """The user id to switch to; `None` if the program keeps ours."""
        return self.options.get("user")

    def works(self) -> bool:
        """Say whether this system lets us become this identity."""
        try:
            asked = subprocess.run(
                [*self.prefix, "/bin/sh", "-c", "id -u"],
                capture_output=True,
                cwd="/",
                check=False,
                **self.options,
            )
        except OSError:
            return False
        return asked.returncode == 0 and asked.stdout.strip() not in {b"", b"0"}


def find_identity() -> Identity | None:
    """Answer as whom to run a server, or `None` if this system leaves only root."""
    return next((identity for identity in _candidates() if identity.works()), None)


def _candidates() -> Iterator[Identity]:
    if os.geteuid() != 0 and _has_name(os.geteuid()):
        yield Identity()
    nobody = _nobody()
    if nobody is None:
        return
    if os.geteuid() == 0:
        yield Identity(options={"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []})
    # For a container that has root and nobody else, or a user without a name, whom `initdb` refuses. It comes
    # second because it is the weaker fence: in such a namespace root still owns the files of root.
    if unshare := shutil.which("unshare"):
        yield Identity(prefix=(unshare, "--user", f"--map-user={nobody.pw_uid}"))


def _has_name(uid: int) -> bool:
    try:
        return bool(pwd.getpwuid(uid))
    except KeyError:
        return False


def _nobody() -> pwd.struct_passwd | None:
    strangers = [entry for entry in pwd.getpwall() if entry.pw_uid != 0]
    return min(strangers, key=lambda entry: entry.pw_name != "nobody", default=None)

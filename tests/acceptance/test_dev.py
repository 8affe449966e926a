"""dev.py: its help helps, its set-up does what is missing and no more, and it runs from anywhere."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dev
from tests.acceptance.processes import is_running, until
from tests.disk.read_only import obey_modes

SCRIPT = Path(dev.__file__)
PROJECT = ("src", "requirements", "tests", "dev.py", "pyproject.toml", "hatch_build.py", "LICENSE", "README.md")


def run_dev(*arguments: str, script: Path = SCRIPT, cwd: Path = Path("/"), **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=cwd,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_what_dev_runs_keeps_its_bytecode_in_our_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    given = dev.environment()

    assert "PYTHONDONTWRITEBYTECODE" not in given
    assert given["PYTHONPYCACHEPREFIX"] == str(dev.CACHE / "bytecode")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A checkout of its own, in which programs are not run but written down."""
    ran: list[str] = []

    def write_down(command: list[str | Path]) -> int:
        ran.append(" ".join(map(str, command)))
        if "venv" in command:
            dev.PYTHON.parent.mkdir(parents=True, exist_ok=True)
            dev.PYTHON.touch(mode=0o755)
        return 0

    for name in ("ROOT", "VENV", "PYTHON", "STAMP", "CACHE", "SETUP_LOG", "LOCKED", "LOCKED_UV"):
        monkeypatch.setattr(dev, name, tmp_path / getattr(dev, name).relative_to(SCRIPT.parent))
    dev.LOCKED.parent.mkdir()
    for path in (dev.LOCKED, dev.LOCKED_UV, dev.ROOT / "pyproject.toml"):
        path.write_text("as it was")
    monkeypatch.setattr(dev, "run_logged", write_down)
    monkeypatch.setattr(dev, "find_uv", lambda: "uv")
    return ran


def test_the_help_names_every_command() -> None:
    shown = run_dev("--help")

    assert all(re.search(rf"^  {name} ", shown, re.MULTILINE) for name in dev.COMMANDS)


@pytest.mark.parametrize("name", dev.COMMANDS)
def test_every_command_has_help_and_does_nothing_else_then(
    name: str, capsys: pytest.CaptureFixture[str], commands: list[str]
) -> None:
    assert dev.main([name, "--help"]) == 0

    assert f"usage: python3 dev.py {name}" in capsys.readouterr().out
    assert not commands


def test_an_unknown_command_is_told_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert dev.main(["tset"]) == 2

    assert "there are: demo, test, check" in capsys.readouterr().err


def test_an_old_python_can_read_the_file() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 7))


def test_an_old_python_starts_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(dev, "find_newer_python", lambda: "/bin/python3.13")
    monkeypatch.setattr(os, "execv", lambda program, arguments: started.extend([program, arguments]))

    dev.leave_old_python((3, 10), ["test", "-x"])

    assert started == ["/bin/python3.13", ["/bin/python3.13", str(SCRIPT), "test", "-x"]]


@pytest.mark.source("PQ-56")
def test_an_old_python_alone_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev, "find_newer_python", lambda: "")

    with pytest.raises(SystemExit, match=r"this is Python 3\.8, .* install python3\.11 or later"):
        dev.leave_old_python((3, 8), [])


def test_the_set_up_installs_the_lock_and_then_the_project(commands: list[str]) -> None:
    dev.set_up()

    venv, locked, project = commands
    assert venv.endswith(f"venv --clear --without-pip {dev.VENV}")
    assert locked.endswith(f"--require-hashes --only-binary :all: -r {dev.LOCKED}")
    assert project.endswith(f"--no-deps --no-build-isolation --editable {dev.ROOT}")


def test_a_second_set_up_runs_nothing(commands: list[str]) -> None:
    dev.set_up()
    commands.clear()

    dev.set_up()

    assert not commands


def test_a_changed_project_is_installed_without_fetching_anything(commands: list[str]) -> None:
    dev.set_up()
    commands.clear()

    (dev.ROOT / "pyproject.toml").write_text("changed")
    dev.set_up()

    [project] = commands
    assert "--no-deps --no-build-isolation --editable" in project


@pytest.mark.parametrize("spoil", ["lock", "stamp", "python"])
def test_a_set_up_that_does_not_fit_is_done_again(spoil: str, commands: list[str]) -> None:
    dev.set_up()
    commands.clear()

    path = {"lock": dev.LOCKED, "stamp": dev.STAMP, "python": dev.PYTHON}[spoil]
    path.unlink()
    if spoil == "lock":
        path.write_text("changed")
    dev.set_up()

    assert len(commands) == 3


def test_a_set_up_that_was_cut_short_is_done_again(monkeypatch: pytest.MonkeyPatch, commands: list[str]) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(dev, "install", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            dev.set_up()
    commands.clear()

    dev.set_up()

    assert len(commands) == 3


@pytest.mark.parametrize(("found", "ran"), [("Chromium 153", 0), ("", 1)])
def test_a_chromium_is_got_if_there_is_none(
    found: str, ran: int, monkeypatch: pytest.MonkeyPatch, commands: list[str]
) -> None:
    dev.CACHE.mkdir()
    monkeypatch.setattr(dev, "output_of", lambda _: found)

    dev.provide_chromium()

    assert commands == [f"{dev.PYTHON} {dev.CHROMIUM}"] * ran


def test_pip_takes_over_where_uv_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str | Path] = []

    def fail_with_uv(command: list[str | Path]) -> int:
        tried.append(command[0])
        return int(command[0] == "uv")

    monkeypatch.setattr(dev, "run_logged", fail_with_uv)

    dev.install([lambda: ["uv"], list, lambda: ["pip"]], ["something"])

    assert tried == ["uv", "pip"]


def test_a_python_without_pip_is_told_which_package_has_it(commands: list[str]) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"

    with pytest.raises(dev.DevError, match=f"apt install python{version}-venv"):
        dev.install([list], ["something"])


def test_a_checkout_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dev, "read_stamp", dict)
    monkeypatch.setattr(dev, "CACHE", Path("/proc/holdfast"))
    refused = PermissionError(13, "Permission denied", "/proc/holdfast")
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(refused))

    assert dev.main(["demo"]) == 1

    assert "cannot write /proc/holdfast: run it as the owner of" in capsys.readouterr().err


STEALING = ("--dist", "worksteal")
CHECKED = [f"--ignore={each}" for each in dev.CHECKING_TESTS]


@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        ([], ["-n", "4", *STEALING, *CHECKED]),
        (["--turns", "1"], ["-n", "4", *STEALING, *CHECKED, "--turns", "1"]),
        (["-k", "claim", "-x"], ["-n", "4", *STEALING, "-k", "claim", "-x"]),
        (["-n", "0"], [*CHECKED, "-n", "0"]),
        (["-n4"], [*CHECKED, "-n4"]),
        (["--pdb"], [*CHECKED, "--pdb"]),
        (["--fast", "-n0"], ["--sqlite-only", "--ignore=tests/acceptance", *CHECKED, "-n0"]),
        (["tests/test_docs.py", "-n0"], ["tests/test_docs.py", "-n0"]),
        (["--long", "tests/store"], ["-n", "2", *STEALING, "-m", "long", "tests/store"]),
    ],
)
def test_arguments_go_to_pytest(given: list[str], passed_on: list[str]) -> None:
    assert dev.test_arguments(given) == passed_on


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], str]]:
    """What dev.py would have become: the program, its arguments after dev.py, and its environment."""
    started: list[tuple[str, list[str], str]] = []

    def become(program: str, arguments: list[str], variables: dict[str, str]) -> None:
        started.append((program, arguments[2:], variables[dev.VENV_NAME]))

    monkeypatch.setattr(os, "execve", become)
    return started


@pytest.fixture
def pythons(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with Python 3.10.4, 3.12.1 and 3.13.10 of pyenv's, and a 3.13 on PATH that does not start."""

    def install(path: Path, does: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{does}\n")
        path.chmod(0o755)

    for version in ("3.10.4", "3.12.1", "3.13.9", "3.13.10"):
        path = tmp_path / "pyenv" / "versions" / version / "bin" / "python3"
        install(path, f"echo {version} {path}")
    install(tmp_path / "shims" / "python3.13", "exit 127")
    install(tmp_path / "shims" / "python3.12-config", "echo 3.14.0 /no/python")
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setattr(dev, "find_uv", lambda: "")
    return tmp_path / "pyenv" / "versions"


@pytest.mark.parametrize(
    ("asked", "got", "venv"),
    [
        (["--python", "3.13"], "3.13.10", ".venv-3.13"),
        (["--python=3.13.9"], "3.13.9", ".venv-3.13"),
        (["--python", "3.12"], "3.12.1", ".venv-3.12"),
    ],
)
def test_another_python_is_started_in_an_environment_of_its_own(
    asked: list[str], got: str, venv: str, pythons: Path, started: list[tuple[str, list[str], str]]
) -> None:
    dev.leave_for_wanted_python(["--fast", *asked, "tests/store", "-x"])

    program = str(pythons / got / "bin" / "python3")
    assert started == [(program, ["test", "--fast", "tests/store", "-x"], venv)]


def test_another_python_may_be_given_by_its_path(pythons: Path, started: list[tuple[str, list[str], str]]) -> None:
    path = str(pythons / "3.12.1" / "bin" / "python3")

    dev.leave_for_wanted_python(["--python", path])

    assert started == [(path, ["test"], ".venv-3.12")]


def test_where_this_user_may_not_look_there_is_no_python(
    pythons: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a PermissionError for everybody who had inherited root's PYENV_ROOT."""
    closed = tmp_path / "root"
    closed.mkdir()
    for name in ("pyenv", "shims"):
        (tmp_path / name).rename(closed / name)
    monkeypatch.setenv("PATH", str(closed / "shims"))
    monkeypatch.setenv("PYENV_ROOT", str(closed / "pyenv"))
    closed.chmod(0)
    try:
        with ThreadPoolExecutor(1, initializer=obey_modes) as thread:
            assert thread.submit(lambda: list(dev.possible_pythons())).result() == []
    finally:
        closed.chmod(0o755)


def test_without_a_wish_the_python_stays(started: list[tuple[str, list[str], str]]) -> None:
    assert dev.leave_for_wanted_python(["-k", "python"]) == ["-k", "python"]

    assert not started


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("3.11", r"no Python '3\.11' was found, there are: 3\.12\.1, 3\.13\.9, 3\.13\.10; or give a path"),
        ("3.1", r"no Python '3\.1' was found"),
        ("", r"no Python '' was found"),
        ("3.10", r"is Python 3\.10\.4, Holdfast needs 3\.11 or newer"),
        ("/no/python", r"/no/python is no Python that can be started"),
    ],
)
def test_a_python_that_is_not_there_is_told_which_are(
    wanted: str, told: str, pythons: Path, started: list[tuple[str, list[str], str]]
) -> None:
    with pytest.raises(dev.DevError, match=told):
        dev.leave_for_wanted_python(["--python", wanted])

    assert not started


def test_a_python_of_uvs_is_found(
    pythons: Path, monkeypatch: pytest.MonkeyPatch, started: list[tuple[str, list[str], str]]
) -> None:
    uv, python = pythons / "uv", pythons / "python"
    uv.write_text(f'#!/bin/sh\n[ "$*" = "python find --system --no-python-downloads 3.14" ] && echo {python}\n')
    python.write_text(f"#!/bin/sh\necho 3.14.2 {python}\n")
    uv.chmod(0o755)
    python.chmod(0o755)
    monkeypatch.setattr(dev, "find_uv", lambda: str(uv))

    dev.leave_for_wanted_python(["--python", "3.14"])

    assert started == [(str(python), ["test"], ".venv-3.14")]


def test_within_an_environment_of_another_python_dev_stays_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dev.VENV_NAME, raising=False)
    monkeypatch.setattr(sys, "prefix", str(dev.ROOT / ".venv-3.13"))
    ours = dev.venv_of_this_process()
    monkeypatch.setattr(sys, "prefix", "/somewhere/.venv-3.13")

    assert [ours, dev.venv_of_this_process()] == [".venv-3.13", ".venv"]


def test_links_to_files_that_do_not_exist_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("[here](page.md#top) [top](#top) [web](scheme://name) [gone](gone.md)\n```\n[code](too.md)\n```\n")

    assert dev.broken_links(page) == ["page.md: no such file: gone.md"]


def test_it_runs_from_another_directory_and_without_a_home(tmp_path: Path) -> None:
    shown = run_dev("test", "-n0", "--version", cwd=tmp_path, HOME=os.devnull)

    assert re.search(r"pytest \d", shown)
    assert re.search(r"set-up 0\.\d s, tests \d+\.\d s", shown)
    assert not list(tmp_path.iterdir())


def test_what_dev_runs_ends_when_dev_is_killed(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux tells a process that its parent has died")
    note = tmp_path / "process"
    program = f"import os, pathlib, sys; pathlib.Path({str(note)!r}).write_text(str(os.getpid())); sys.stdin.read()"
    runner = f"import dev, sys; dev.run([sys.executable, '-c', {program!r}])"
    with subprocess.Popen([sys.executable, "-c", runner], cwd=SCRIPT.parent, stdin=subprocess.PIPE) as outer:
        until(lambda: note.exists() and note.read_text(), "the program starts")

        outer.send_signal(signal.SIGKILL)

        until(lambda: not is_running(int(note.read_text())), "the program ends")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A fresh copy of the project."""
    for name in PROJECT:
        source = SCRIPT.parent / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, tmp_path / name)
    return tmp_path


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_fresh_checkout_sets_itself_up_once(checkout: Path) -> None:
    first = run_dev("test", "-n0", "--version", script=checkout / "dev.py")
    second = run_dev("test", "-n0", "--version", script=checkout / "dev.py")

    assert "setting up .venv" in first
    assert "setting up .venv" not in second


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_set_up_that_was_killed_is_repaired_by_two_at_once(checkout: Path) -> None:
    command = [sys.executable, str(checkout / "dev.py"), "test", "-n0", "--version"]
    packages = checkout / ".venv"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as killed:
        until(lambda: len(list(packages.glob("lib/*/site-packages/*"))) > 3, "the set-up is under way", 300)
        killed.kill()

    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(2)]
    outputs = [each.communicate()[0].decode() for each in both]

    assert [each.returncode for each in both] == [0, 0], outputs
    assert sum("setting up .venv" in output.replace("another dev.py is setting up", "") for output in outputs) == 1

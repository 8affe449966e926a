"""The command line in this process, as a person has it: what it prints, what it complains of, and its exit code."""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

import pytest

from holdfast.cli import main


class Printed(NamedTuple):
    """What a command printed."""

    out: str
    err: str


class CommandLine:
    """The command itself: `run("token", "list")`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> Printed:
        """Run it; it must end with *code*."""
        self._monkeypatch.setattr(sys, "argv", ["holdfast", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = Printed(*self._capsys.readouterr())
        assert int(str(ended.value.code or 0)) == code, printed.err
        return printed

    def read(self, *arguments: str) -> Any:
        """Run it, and read its JSON."""
        return json.loads(self(*arguments, "--json").out)

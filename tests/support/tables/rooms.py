"""The rooms of the house and their arrows, drawn for the architecture page from the rules that the house test holds."""

from __future__ import annotations

from tests.test_house import INSIDE, NAMES, ROOMS, imports, room_of

MEANING = {
    "ground": "values, errors, settings, the law of states; most of it is pure: no database, no clock, no thread",
    "wire": "how jobs and events look outside: JSON, SSE frames, bodies of webhooks, cursors",
    "webhooks": "addresses, signatures and posting; receivers of webhooks use it too",
    "database": "connections and transactions on SQLite, PostgreSQL and your own connection; knows no job",
    "store": "the operations, which have the SQL; knows jobs and no connection",
    "tasks": "tasks, calls, the registry; what the annotations of a function say",
    "events": "one reader of the log in each process, for listeners, event streams and watchers",
    "client": "what `hf` and `hf.sync` do, written once: start, wait, steer, complete",
    "worker": "claims jobs, runs attempts, settles them; leases, upkeep, child processes",
    "front door": "`Holdfast`, async and blocking, with one line for each method; the public names",
    "supervisor": "worker processes: start, restart, stop, report health",
    "integrations": "SQLAlchemy, Django, Alembic, Starlette, FastAPI: one module for each library",
    "http": "the event stream over HTTP",
    "cli": "the `holdfast` command: one file for each group of commands",
    "testing": "a temporary PostgreSQL for your tests",
}


def drawing() -> str:
    """Draw the rooms as a Mermaid flowchart: an arrow for each import that no longer way explains."""
    lines = [f"    {_id(room)}[{room}]" for room in reversed(ROOMS)]
    lines += [f"    {_id(room)} --> {_id(below)}" for room in reversed(ROOMS) for below in _shown(room)]
    return "\n".join(["```mermaid", "flowchart TB", *lines, "```"])


def rows() -> list[tuple[str, str, str]]:
    """Give for each room, from the top, its name, its meaning and what is in it, the top first."""
    return [(f"**{room}**", MEANING[room], _inside(room)) for room in reversed(ROOMS)]


def _id(room: str) -> str:
    return room.replace(" ", "_")


def _arrows() -> dict[str, list[str]]:
    """Give the rooms that each room imports from, for types too, the highest first."""
    names = list(ROOMS)
    found: dict[str, set[int]] = {room: set() for room in names}
    for name, path in NAMES.items():
        room = room_of(name)
        found[names[room]] |= {room_of(imported) for imported, _ in imports(path)} - {room}
    return {room: [names[each] for each in sorted(below, reverse=True)] for room, below in found.items()}


def _shown(room: str) -> list[str]:
    """Give the arrows of *room* that are drawn: to what it imports and none of its other rooms leads to."""
    arrows = _arrows()

    def reached(start: str) -> set[str]:
        return {start}.union(*(reached(each) for each in arrows[start]))

    return [each for each in arrows[room] if not any(each in reached(other) for other in arrows[room] if other != each)]


def _inside(room: str) -> str:
    if room not in INSIDE:
        heads = ROOMS[room]
        found = sorted(name.split(".")[1] for name in NAMES if name.count(".") == 1 and name.startswith(f"{heads[0]}."))
        return " ".join(f"`{each}`" for each in found or heads)
    return " → ".join(" ".join(f"`{each}`" for each in line) for line in reversed(INSIDE[room]))

"""The user's own SQL in a block: `:name` parameters.

The grammar is that of SQLAlchemy's `text()`, made safe: a colon inside a literal, a quoted name, a comment or a dollar
quote is no parameter, nor are `::` and what `\\:` stands for; a percent sign means itself. Each text is read once.

    >>> in_postgres("SELECT :n::int, '%:a'").text
    "SELECT %(n)s::int, '%%:a'"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from holdfast.errors import InvalidInput, Misuse

MOST_REMEMBERED = 1024

# one pass; what comes first wins
GRAMMAR = r"""
      (?P<remark> /\* )
    | (?P<kept>
          --[^\n]*
        | (?<!\w) [eE] ' (?: [^'\\] | \\. | '' )* (?:'|\Z)
        | ' (?: [^'] | '' )* (?:'|\Z)
        | " (?: [^"] | "" )* (?:"|\Z)
        | (?<![\w$]) \$ (?P<tag> (?:[^\W\d]\w*)? ) \$ .*? (?: \$(?P=tag)\$ | \Z )
        {names}
        | ::
      )
    | \\ (?P<escaped> : )
    | (?<!\w) : (?P<name> [^\W\d]\w* ) (?! \w | :(?!:) )
    """
IN_POSTGRES = re.compile(GRAMMAR.format(names=""), re.VERBOSE | re.DOTALL)
# names in brackets are SQLite's, where PostgreSQL has slices of arrays
IN_SQLITE = re.compile(GRAMMAR.format(names=r"| \[ [^\]]* \] | ` [^`]* `"), re.VERBOSE | re.DOTALL)
REMARK_EDGE = re.compile(r"/\*|\*/")
LEADING = r"^ (?: \s | ; | --[^\n]*\n | /\* .*? \*/ )*"
ENDS = re.compile(
    LEADING
    + r"""(?: (?: BEGIN | START | COMMIT | END ) \b | PREPARE \s+ TRANSACTION \b
    | (?: ROLLBACK | ABORT ) \b (?! (?: \s+ (?: WORK | TRANSACTION ) )? \s+ TO \b ) )""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
SAVEPOINTS = re.compile(LEADING + r"(?: SAVEPOINT | RELEASE | ROLLBACK ) \b", re.VERBOSE | re.DOTALL | re.IGNORECASE)
ANOTHER = re.compile(r"; \s* [^\s;]", re.VERBOSE)
BODY = re.compile(r"^ \s* CREATE \b [^;]* \b BEGIN \b", re.VERBOSE | re.IGNORECASE)  # a trigger's own statements
# what the session keeps when the transaction is over; where that is not sure, a new connection is all it costs
STAYS = re.compile(
    LEADING
    + r"""(?: (?: RESET | DISCARD | LISTEN | PREPARE | LOAD | DECLARE | PRAGMA | ATTACH | DETACH ) \b
        | SET \s+ (?! (?: LOCAL | TRANSACTION | CONSTRAINTS ) \b ) )
    | \b (?: CREATE | INTO ) \s+ (?: (?: LOCAL | GLOBAL ) \s+ )? TEMP (?: ORARY )? \b
    | \b set_config \b | \b pg_ (?: try_ )? advisory_ (?! xact ) \w* lock""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


class UserStatement(NamedTuple):
    """A text in a driver's own words, and the names of its parameters."""

    text: str
    names: frozenset[str]
    stays: bool = False
    """Whether its connection may keep something of it that the next user must not find: settings, temporary tables."""

    def bind(self, values: Mapping[str, object]) -> dict[str, object]:
        """Give *values* to the driver; raise `InvalidInput` unless they are just those that the text names."""
        if self.names != values.keys():
            self._refuse(values)
        return dict(values)

    def _refuse(self, values: Mapping[str, object]) -> None:
        wrong = [
            f"{what} {', '.join(f':{name}' for name in sorted(names))}"
            for what, names in (
                ("no value is given for", self.names - values.keys()),
                ("the statement does not name", values.keys() - self.names),
            )
            if names
        ]
        raise InvalidInput(f"{'; '.join(wrong)}; give a value for each :name, and write \\: for a plain colon")


@lru_cache(MOST_REMEMBERED)
def in_postgres(sql: str) -> UserStatement:
    """Write *sql* as psycopg reads it, with `%(name)s`."""
    return _rewritten(sql, IN_POSTGRES, lambda name: f"%({name})s", lambda text: text.replace("%", "%%"))


@lru_cache(MOST_REMEMBERED)
def in_sqlite(sql: str) -> UserStatement:
    """Write *sql* as sqlite3 reads it, with `:name`."""
    return _rewritten(sql, IN_SQLITE, lambda name: f":{name}", lambda text: text)


@lru_cache(MOST_REMEMBERED)
def in_text(sql: str, database: str) -> UserStatement:
    """Write *sql* as SQLAlchemy's `text()` reads it: every colon that names no parameter with a backslash before it."""
    token = IN_SQLITE if database == "sqlite" else IN_POSTGRES
    return _rewritten(sql, token, lambda name: f":{name}", lambda text: text.replace(":", r"\:"), colon=r"\:")


@lru_cache(MOST_REMEMBERED)
def in_format(sql: str, database: str) -> UserStatement:
    """Write *sql* as Django's cursors read it: with `%(name)s`, whichever driver is behind them."""
    token = IN_SQLITE if database == "sqlite" else IN_POSTGRES
    return _rewritten(sql, token, lambda name: f"%({name})s", lambda text: text.replace("%", "%%"))


def ends_transaction(sql: str) -> bool:
    """Tell whether *sql* begins or ends a transaction, by its first words; savepoints do not."""
    return ENDS.match(sql) is not None


def not_theirs_to_end() -> Misuse:
    """Make the error for who would end a block's transaction himself."""
    return Misuse(
        "only Holdfast may end the transaction of a block: leave the block to commit, raise to roll back, and write "
        "`tx.savepoint()` around a part that may fail"
    )


def _refuse(sql: str, plain: str) -> None:
    """Refuse what would end the transaction, also behind another statement; *plain* is *sql* without what is quoted."""
    for text in (sql, plain):
        if ends_transaction(text) or SAVEPOINTS.match(text):
            raise not_theirs_to_end()
    if ANOTHER.search(plain) and not BODY.search(plain):
        raise Misuse("a block runs one statement at a time; write a call for each of them, without the semicolon")


def _rewritten(
    sql: str,
    token: re.Pattern[str],
    parameter: Callable[[str], str],
    verbatim: Callable[[str], str],
    colon: str = ":",
) -> UserStatement:
    parts: list[str] = []
    plain: list[str] = []
    names: set[str] = set()
    at = 0
    while found := token.search(sql, at):
        plain.append(sql[at : found.start()])
        parts.append(verbatim(plain[-1]))
        at = found.end()
        if found["name"]:
            names.add(found["name"])
            parts.append(parameter(found["name"]))
        elif found["escaped"]:
            parts.append(colon)
        else:
            if found["remark"]:
                at = _end_of_remark(sql, at)
            parts.append(verbatim(sql[found.start() : at]))
    plain.append(sql[at:])
    _refuse(sql, " ".join(plain))
    return UserStatement("".join((*parts, verbatim(plain[-1]))), frozenset(names), STAYS.search(sql) is not None)


def _end_of_remark(sql: str, at: int) -> int:
    """Find where the comment ends that was opened before *at*; PostgreSQL's may stand in one another."""
    depth = 1
    while depth and (edge := REMARK_EDGE.search(sql, at)):
        depth += 1 if edge[0] == "/*" else -1
        at = edge.end()
    return at if depth == 0 else len(sql)

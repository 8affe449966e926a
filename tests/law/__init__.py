"""The law: which moves a job may make, and what every write to the tables must keep true. It is written once, here.

Three drivers apply it, each to a stream of rows of its own. The simulation looks at each commit of an engine on virtual
time. Torture looks at the recorded history of real processes. The rule machine looks at the events of single steps on
both databases. `tests/store/test_moves.py` holds every statement to the table of moves.

Nothing here imports `holdfast.states`: the law comes from DESIGN §3, so that a mistake in the package shows. Every rule
says which invariant is broken. `tests/torture/test_checker.py` has an edited history for each of them.
"""

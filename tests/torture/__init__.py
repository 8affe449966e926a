"""The torture run: real processes of all kinds, every fault at random, a recorded history, and a checker that decides.

`application` is what the workers run; `producers` start jobs, an `operator` steers them, `tailer` follows the log,
`receiver` takes webhooks, and `nemesis` does harm. Triggers of `audit` write every move of a job down in the
transaction that makes it; `history` is all that was recorded, as files. `checker` reads these files, and nothing else,
and asks the rules of all `rules_of_…`: a history that was kept can be checked again. `run` leads a run from its seed to
its report.
"""

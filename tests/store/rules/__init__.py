"""Layer R: a rule machine drives the real store, and a model in plain Python says what must come of every step.

`world` holds the model's facts and the laws that everything else uses; `admission`, `running` and `steering` say what
the engine, a worker and people do to them, written from DESIGN §3 and §4 and not from the engine. `sides` drives the
store, `machine` draws the steps and compares.
"""

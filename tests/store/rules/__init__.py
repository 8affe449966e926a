"""Layer R: a rule machine drives the real store, and a model in plain Python says what must come of every step.

`world` holds the model's facts and the laws that everything else uses; `admission`, `running`, `continuing`, `steering`
and `completing` say what the engine, workers and people do to them, written from DESIGN §3 and §4 and not from the
engine. `sides` drives the store, `machine` draws the steps and compares; `mutants` and `chain_mutants` are wrong ones.
"""

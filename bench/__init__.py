"""Measures Holdfast beside the bare drivers and beside its peers: `python3 dev.py bench`.

    start       how fast jobs are started
    limits/     the bare drivers doing the same statements by hand: what no engine can be faster than
    peers/      other engines, each in an environment of its own
    rounds      everything takes its turn in every round, so that a ratio compares like with like
    report      the table
    machine     what the numbers were measured on

Only ratios inside one run mean anything: the same thing moves up to twofold between runs on a shared machine.
"""

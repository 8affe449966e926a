"""Measures Holdfast beside the bare drivers and beside its peers: `python3 dev.py bench`.

    start       how fast jobs are started
    throughput  how fast one worker runs them
    latency     how long it takes from a start to its handler
    lanes       what 10,000 lanes cost
    events      what the log costs, and how fast it is read
    idle        what a worker costs that has nothing to do
    schedules   what 10,000 schedules cost, due at once or idle
    tenants     what idle and busy tenants cost, and how they wait for each other
    backlog     what rows cost that are in the way
    figures     what it costs to look: lists, the inbox, explanations, overview
    everything  all of them, as the page of benchmarks shows them: `all`
    limits/     the bare drivers doing the same statements by hand: what no engine can be faster than
    peers/      other engines, each in an environment of its own
    meter       seconds, and the CPU of client and server
    rounds      everything takes its turn in every round, so that a ratio compares like with like
    report      the table
    places      the file and the server that it is measured on
    streaming   a hundred clients that read server-sent events, and who serves them
    drain       one worker, until so many jobs are done
    explaining  how many pages of PostgreSQL a statement touches
    backends    the memory of processes, and the locks of a database's backends
    machine     what the numbers were measured on

Only ratios inside one run mean anything: the same thing moves up to twofold between runs on a shared machine. There the
ratios by CPU are the sturdier ones.
"""

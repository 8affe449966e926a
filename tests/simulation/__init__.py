"""The real engine on virtual time, over a real SQLite file, with faults drawn from a seed.

virtual   clock, event loops and threads of the simulated machine
disk      the SQLite file as a simulated process sees it: latency, errors, a stranger's lock
process   a simulated process: the real Holdfast and Worker, built from constructor arguments
checker   looks at the tables after every commit; `kept` at phases, webhooks and what retention takes away, `ticks` at
          schedules
post      who receives webhooks, and answers well, badly or never
tailer    who follows the log, stops, and comes back with its cursor
world     actors, faults, and one run from a seed
scenes    what chance brings about too seldom, set by hand; `chain_scenes` are those of chains, `schedule_scenes` those
          of schedules, of which one is a run of chance
"""

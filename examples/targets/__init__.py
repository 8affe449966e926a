"""A target queue: machines of several customers, one job at a time on each, and people who resume what has stopped.

server      the server: `python -m examples.targets.server DATABASE PORT`
__main__    `python -m examples.targets [postgresql://…]` starts it, has it do something, and stops it
"""

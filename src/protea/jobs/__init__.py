"""Queued jobs: their minijobs in the catalogue, Procrastinate that delivers them, the worker and its child processes.

The rows are the truth and a delivery is only a knock at the door: one that is lost, repeated or late changes nothing.

    rows.py       what happens to a job and its minijobs, each change in one transaction
    takeover.py   what becomes of the minijobs of a worker that died
    queue.py      Procrastinate: names, queues, deferring in the transaction that records
    worker.py     the worker process: heartbeat, cancel, stop, one slot a child process
    supervise.py  one child process from the outside: start, limits, why it ended
    child.py      one child process from the inside: runs the core's functions
    local.py      submits an export and works it off with workers of its own (`protea export run --workers`)

Called by the command line; calls the catalogue, `protea.exporting` and the core's operations.
"""

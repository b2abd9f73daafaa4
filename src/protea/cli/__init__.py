"""The command line: one module a command group, none with logic of its own.

`main` is the program `protea`. It imports the module of the command that is run and no other, and these import what
is heavy inside their functions, so that `protea --help` and `protea list` start at once.
"""

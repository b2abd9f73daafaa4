"""The errors of PROTEA: one base class with a code, a hint and an exit status.

Every layer raises these; the command line prints them as one line and exits with `exit_code`
(2 for what the user can put right, 1 for what is ours).
"""


def _one_line(text: str) -> str:
    """What a file or a library put into a message may break it, or steer a terminal: such characters are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class ProteaError(Exception):
    """Something went wrong inside PROTEA or on the machine it runs on. The message becomes one line of printable text."""

    code = "internal"
    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = _one_line(message)
        self.hint = hint and _one_line(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UserError(ProteaError):
    """What was asked cannot be done as asked; the message says what to change."""

    code = "user"
    exit_code = 2


class InputError(UserError):
    """A file is not what it should be: the message names the file and the line, accession or key."""

    code = "input"


class ConfigError(UserError):
    """A setting is unknown, ill-typed, missing or at odds with another one."""

    code = "config"


class NotFoundError(UserError):
    """A name (of an ontology, annotation set, dataset, ...) is not in the catalogue, or a file does not exist."""

    code = "not_found"


class ConflictError(UserError):
    """A name is taken by something else."""

    code = "conflict"


class BusyError(UserError):
    """Another process holds what is needed."""

    code = "busy"


class DiskError(UserError):
    """There is not enough room on the disk for what was asked."""

    code = "disk"


class CancelledError(ProteaError):
    """Work was stopped because somebody asked for it; what was finished is kept."""

    code = "cancelled"


class DatabaseError(ProteaError):
    """The catalogue's database cannot be started, reached or migrated."""

    code = "database"


class StorageError(ProteaError):
    """A file of ours is missing, damaged or cannot be written."""

    code = "storage"

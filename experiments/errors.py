"""The exceptions whose text is meant for the user."""


class UserError(Exception):
    """Something the user can put right: shown as one line, exit code 2, no traceback."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class RunFailed(Exception):
    """The run came to nothing, for a reason that it can name: shown as one line, exit code 1, resumable."""

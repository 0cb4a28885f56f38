"""flower-superexec, only that it sits out a SuperLink's HTTP 500: Flower's own ends, and its ServerApps with it."""

from __future__ import annotations

from flwr.supercore.cli import flower_superexec

from thistle.rooms import use_rooms

if __name__ == "__main__":
    use_rooms()
    from server.remote import sit_out_errors

    sit_out_errors()
    flower_superexec()

"""Messages that are made outside of Flower's processes behave as Flower's own."""

from __future__ import annotations

import subprocess
import sys

from flwr.app import Message, RecordDict

from thistle.flower_compat.messages import identify, name_message

MAKE = "from flwr.app import Message, RecordDict\n{before}\nMessage(RecordDict(), 7, 'train')"


def make(before: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MAKE.format(before=before)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_nobody_makes_a_message_without_saying_who_makes_it() -> None:
    assert "TaskIdentity" in make("").stderr
    assert make("from thistle.flower_compat.messages import identify; identify()").returncode == 0


def test_a_name_is_the_id_that_flower_shows_and_that_replies_answer() -> None:
    identify()
    message = Message(RecordDict(), 7, "train")
    assert message.metadata.message_id == ""
    name = name_message(message)
    assert message.metadata.message_id == name
    assert Message(RecordDict(), reply_to=message).metadata.reply_to_message_id == name

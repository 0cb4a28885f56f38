"""The audit log: whatever is changed is found, and whatever befalls the server leaves a log that can be checked."""

from __future__ import annotations

import ast
import hashlib
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from tests.federations import model_sha, rounds, run, tiny
from tests.server.test_federation import Killed, MortalGrid
from thistle.commands.audit import verify
from thistle.experiments.chain import Chain
from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
READER = ROOT / "thistle" / "audit"
EVIDENCE: dict[str, Any] = {
    "rounds": 3,
    "run.keep-replies": True,
    "strategy.name": "rofsl",
    "task.server-data": "holdout:100",
    "attack.kind": "sign-flip",
    "attack.fraction": 0.25,
    "client.clip": 1.5,
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tiny(tmp_path_factory.mktemp("runs"), **EVIDENCE)).path


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy, whose original is gone as far as the auditor is concerned: what lies beside the log comes first."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def audit(folder: Path, capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[int, str]:
    """The exit code, and what was said."""
    code = 0
    try:
        verify(folder, **{"key": None, "noted": "", "replay": True, **options})
    except typer.Exit as end:
        code = end.exit_code
    said = capsys.readouterr()
    return code, " ".join((said.out + said.err).split())


def test_an_honest_log_is_in_order_and_its_models_are_computed_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = audit(folder, capsys)
    assert code == 0 and "3 rounds, each model computed again from the replies" in said, said
    lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["begun", "started", "round", "round", "round", "finished"]
    assert lines[-1]["model_sha256"] == lines[-2]["model_sha256"] == model_sha(RunFolder(folder))
    assert lines[1]["experiment"]["strategy.name"] == "rofsl"
    assert {verdict["verdict"] for verdict in lines[2]["verdicts"]} == {"accepted", "filtered"}
    assert (folder / "audit.key").stat().st_mode & 0o777 == 0o600


# ---- manipulations -------------------------------------------------------------------------------------------------


def in_file(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


def flip_a_bit(name: str, place: float = 0.5) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = next(folder.glob(name))
        content = bytearray(path.read_bytes())
        content[int(place * len(content))] ^= 1
        path.write_bytes(content)

    return change


def with_lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "audit.jsonl"
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return apply


def drop_a_reply(folder: Path) -> None:
    next((folder / "replies").iterdir()).unlink()


def key_of(folder: Path) -> Ed25519PrivateKey:
    key = load_pem_private_key((folder / "audit.key").read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    return key


def write_anew(folder: Path, key: Ed25519PrivateKey, change: Callable[[dict[str, Any]], None]) -> None:
    """As somebody would who has the key, or another one: every line changed at will and signed again."""
    whole, before = b"", "0" * 64
    lines = (folder / "audit.jsonl").read_text().splitlines()
    for text in lines:
        line = json.loads(text)
        del line["sig"]
        change(line)
        body = json.dumps({**line, "prev": before}, separators=(",", ":")).encode()
        raw = body[:-1] + b',"sig":"' + key.sign(body).hex().encode() + b'"}\n'
        before, whole = hashlib.sha256(raw).hexdigest(), whole + raw
    head = {"lines": len(lines), "size": len(whole), "sha256": before}
    sig = key.sign(f"{head['lines']} {head['size']} {before}".encode()).hex()
    (folder / "audit.jsonl").write_bytes(whole)
    (folder / "audit.head").write_text(json.dumps({**head, "sig": sig}))


def replace_the_key(folder: Path) -> None:
    mine = Ed25519PrivateKey.generate()
    raw = mine.public_key().public_bytes_raw().hex()
    write_anew(folder, mine, lambda line: line.update({"key": raw} if "key" in line else {}))
    pem = mine.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "audit.pub").write_bytes(pem)


def swap_the_rule_with_the_key(folder: Path) -> None:
    """The operator pretends to have run FedAvg: in the log, which only the key's owner can, and in the experiment."""

    def change(line: dict[str, Any]) -> None:
        if "experiment" in line:
            line["experiment"]["strategy.theta"] = 0.0

    in_file("experiment.toml", "theta = 0.5", "theta = 0.0")(folder)
    write_anew(folder, key_of(folder), change)


def hide_a_reply_with_the_key(folder: Path) -> None:
    def change(line: dict[str, Any]) -> None:
        if line.get("round") == 2:
            accepted = next(one["client"] for one in line["verdicts"] if one["verdict"] == "accepted")
            line["replies"] = [reply for reply in line["replies"] if reply[0] != accepted]

    write_anew(folder, key_of(folder), change)


MANIPULATIONS: dict[str, tuple[Callable[[Path], None], str]] = {
    "one flipped bit": (flip_a_bit("audit.jsonl"), "is not what the server signed"),
    "a bit of a reply": (flip_a_bit("replies/*.reply"), "missing or changed"),
    "a dropped reply": (drop_a_reply, "missing or changed"),
    "a swapped rule": (in_file("experiment.toml", 'name = "rofsl"', 'name = "rfa"'), "not the experiment"),
    "an edited experiment": (in_file("experiment.toml", "epochs = 1", "epochs = 2"), "not the experiment"),
    "a truncated tail": (with_lines(lambda lines: lines[:-1]), "the last line was line 6"),
    "half a tail": (with_lines(lambda lines: [*lines[:-1], lines[-1][:40]]), "the last line was line 6"),
    "no head": (lambda folder: (folder / "audit.head").unlink(), "audit.head"),
    "reordered lines": (with_lines(lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]]), "does not follow"),
    "a line taken out": (with_lines(lambda lines: [*lines[:2], *lines[3:]]), "does not follow"),
    "a line said twice": (with_lines(lambda lines: [*lines, lines[2]]), "does not follow"),
    "an edited verdict": (in_file("verdicts.jsonl", '"filtered"', '"accepted"'), "verdicts.jsonl: round 1"),
    "an edited verdict in the log": (in_file("audit.jsonl", '"filtered"', '"accepted"'), "line 3: is not what"),
    "an edited metric": (in_file("metrics.jsonl", '"accuracy": 0.', '"accuracy": 0.9'), "metrics.jsonl: round"),
    "a round struck from the metrics": (in_file("metrics.jsonl", '"round": 2', '"round": 7'), "metrics.jsonl: round 2"),
    "a changed model": (flip_a_bit("model.safetensors", 0.9), "model.safetensors"),
    "an edited summary": (in_file("summary.json", '"rounds": 3', '"rounds": 4'), "summary.json"),
    "a swapped rule, by who has the key": (swap_the_rule_with_the_key, "round 1: its replies give"),
    "a hidden reply, by who has the key": (hide_a_reply_with_the_key, "round 2: its replies give"),
}


@pytest.mark.parametrize("name", MANIPULATIONS)
def test_a_manipulation_is_found(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manipulate, found = MANIPULATIONS[name]
    manipulate(folder)
    code, said = audit(folder, capsys)
    assert code == 1 and found in said and "NOT as the server wrote it" in said, said


def test_another_key_is_found_by_whoever_kept_the_real_one(
    folder: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_the_key(folder)
    code, said = audit(folder, capsys)
    assert code == 0 and "compare it with the one you noted" in said, "nothing next to the log can tell"
    code, said = audit(folder, capsys, key=finished / "audit.pub")
    assert code == 1 and "line 1: is not what the server signed" in said


def test_a_tail_cut_off_with_its_head_is_found_by_whoever_noted_the_last_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {name: (folder / name).read_bytes() for name in ("audit.jsonl", "audit.head")}
    Chain(folder).append("revoked", node="7")
    noted = audit(folder, capsys)[1].split("--noted next time: ")[1]
    for name, content in before.items():
        (folder / name).write_bytes(content)
    assert audit(folder, capsys)[0] == 0, "an old head fits an old log"
    code, said = audit(folder, capsys, noted=noted)
    assert code == 1 and "the line that was noted is line 7" in said


# ---- what befalls the server ---------------------------------------------------------------------------------------


def test_rounds_that_were_tried_again_are_visible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = tiny(tmp_path, rounds=3, **{"run.keep-replies": True, "strategy.name": "dsvd"})
    with pytest.raises(Killed):
        run(experiment, MortalGrid(experiment, 3))
    folder = tmp_path / "run"
    shutil.rmtree(folder / "checkpoint" / "round-000002")  # as if it had been killed before that was written
    with (folder / "audit.jsonl").open("ab") as file:
        file.write(b'{"n":5,"time":"20')
    code, said = audit(folder, capsys)
    assert code == 0 and "the last line is incomplete" in said, said
    run(tiny(tmp_path, rounds=3, **{"run.keep-replies": True, "strategy.name": "dsvd", "run.resume": True}))
    code, said = audit(folder, capsys)
    assert code == 0 and "17 bytes of a line, which were cut off" in said, said
    assert "1 round after round 1 had to be repeated" in said
    assert "3 rounds, each model computed again" in said
    events = [json.loads(line)["event"] for line in (folder / "audit.jsonl").read_text().splitlines()]
    assert "failed" in events or "stopped" in events


def test_a_full_disk_leaves_a_whole_log(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    chain.append("one")
    size, limits = chain.log.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40, limits[1]))
    try:
        with pytest.raises(OSError, match=r"space|large"):
            chain.append("two")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert chain.log.stat().st_size == size
    chain.append("three")
    lines = [json.loads(line) for line in chain.log.read_text().splitlines()]
    assert [(line["n"], line["event"]) for line in lines] == [(0, "begun"), (1, "one"), (2, "three")]


def test_the_server_goes_on_after_a_line_that_its_head_does_not_know_and_not_after_a_strangers(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    chain.append("one")
    head = chain.head.read_bytes()
    chain.append("two")
    chain.head.write_bytes(head)  # killed between the line and the head
    Chain(tmp_path).append("three")
    lines = chain.log.read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["event"] for line in lines] == ["begun", "one", "two", "three"]
    for content, reason in ((b"".join([*lines, lines[2]]), "line 5 is not the server's"), (lines[0], "and had")):
        chain.log.write_bytes(content)
        with pytest.raises(UserError, match=reason):
            Chain(tmp_path).append("four")


def test_processes_that_write_at_once_do_not_tear_the_chain(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from thistle.experiments.chain import Chain; "
        "[Chain(Path(sys.argv[1])).append('line', of=sys.argv[2]) for _ in range(10)]"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(n)], cwd=ROOT) for n in range(3)]
    assert [writer.wait(timeout=200) for writer in writers] == [0, 0, 0]
    from thistle.audit.reader import Reader

    reader = Reader(tmp_path, Chain(tmp_path).key.public_key())
    reader.check_end()
    assert not reader.problems and len(reader.lines) == 31


# ---- the rest ------------------------------------------------------------------------------------------------------


def test_a_log_changes_no_model_and_is_off_in_simulations(tmp_path: Path) -> None:
    plain = run(tiny(tmp_path, "plain", rounds=1))
    audited = run(tiny(tmp_path, "audited", rounds=1, **{"run.audit": "on"}))
    assert model_sha(plain) == model_sha(audited) and len(rounds(audited)) == 1
    assert not list(plain.path.glob("audit*")) and not (audited.path / "replies").exists()
    assert (audited.path / "audit.jsonl").is_file()
    with pytest.raises(UserError, match=r"run\.keep-replies"):
        tiny(tmp_path, **{"run.audit": "off", "run.keep-replies": True})


def test_the_reader_is_short_and_imports_nothing_of_the_writer() -> None:
    sources = [path.read_text(encoding="utf-8") for path in sorted(READER.glob("*.py"))]
    assert all(len(source.splitlines()) <= 200 for source in sources)
    lines = [line.strip() for source in sources for line in ast.unparse(ast.parse(source)).splitlines()]
    assert len([line for line in lines if line and not line.startswith(('"""', "import ", "from "))]) <= 200
    look = "import sys, thistle.audit.reader, thistle.audit.replay; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    writers = ("experiments.chain", "recording.audit", "recording.packing", "recording.recorder", "server.federation")
    assert not [name for name in loaded.split() if name.endswith(writers)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"noted": "7"}, "LINES:HASH"), ({"key": Path("nowhere.pub")}, "public key")],
)
def test_what_is_typed_wrong_is_said_in_one_line(folder: Path, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        verify(folder, **{"key": None, "noted": "", "replay": True, **options})
    with pytest.raises(UserError, match=r"has no audit\.jsonl"):
        verify(folder / "replies")

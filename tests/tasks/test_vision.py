"""torchvision through one door: whole operators, files found and unpacked, downloads that never hang."""

from __future__ import annotations

import gzip
import io
import pickle
import socket
import struct
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from thistle.experiments.errors import UserError
from thistle.tasks.sources import read_source, vision
from thistle.tasks.sources.registry import SOURCES

TRAIN = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
TEST = TRAIN[:10]
LABELS = (np.arange(20) % 10).astype(np.uint8)


def image_set(name: str) -> vision.ImageSet:
    found = SOURCES[name]
    assert isinstance(found, vision.ImageSet)
    return found


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def idx_files(folder: Path, packed: bool = True, train: str = "train", test: str = "t10k") -> None:
    folder.mkdir(parents=True)
    for part, pixels in ((train, TRAIN), (test, TEST)):
        for what, array in (("images-idx3", pixels), ("labels-idx1", LABELS[: len(pixels)])):
            name = f"{part}-{what}-ubyte"
            (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(idx(array)) if packed else idx(array))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision, "_answers", lambda address: False)


def test_torchvision_imports_and_its_models_work() -> None:
    module = vision.torchvision()
    assert module is vision.torchvision() is sys.modules["torchvision"]
    assert module.models.resnet18(num_classes=3).fc.out_features == 3


def test_nothing_is_declared_where_its_own_operators_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision, "_own_operators_load", lambda package: True)
    monkeypatch.setattr(vision, "_declared", [])
    vision._declare_missing_operators()
    assert vision._declared == []


def test_own_operators_are_those_that_torch_can_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert not vision._own_operators_load(tmp_path)
    (tmp_path / "_C.so").write_bytes(b"not a library")
    assert not vision._own_operators_load(tmp_path)
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    assert vision._own_operators_load(tmp_path)


def test_the_data_modules_import_quickly() -> None:
    code = "import sys, thistle.tasks.sources; print({'torch', 'sklearn', 'torchvision', 'scipy'} & sys.modules.keys())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_idx_files_packed_or_not(cache: Path, tmp_path: Path, name: str, folder: str, packed: bool) -> None:
    raw = tmp_path / "data" / folder / "raw"
    idx_files(raw, packed)
    before = sorted(raw.iterdir())
    dataset = read_source(name, str(tmp_path / "data"))
    np.testing.assert_array_equal(dataset.train.pixels[:, 0], TRAIN)
    np.testing.assert_array_equal(dataset.test.labels, LABELS[:10])
    assert len(dataset.classes) == 10
    assert sorted(raw.iterdir()) == before
    assert not list(cache.rglob("*ubyte*"))


def test_emnist_stands_upright(cache: Path, tmp_path: Path) -> None:
    idx_files(tmp_path / "data/EMNIST/raw", True, "emnist-balanced-train", "emnist-balanced-test")
    dataset = read_source("emnist", str(tmp_path / "data"))
    np.testing.assert_array_equal(dataset.train.pixels[:, 0], TRAIN.transpose(0, 2, 1))
    assert len(dataset.classes) == 47
    assert dataset.classes[9:12] == ("9", "A", "B")


def test_files_in_the_cache_are_found_without_data_dir(cache: Path) -> None:
    idx_files(cache / "MNIST" / "raw")
    assert len(read_source("mnist").train) == 20


def test_a_damaged_idx_file_is_refused(cache: Path, tmp_path: Path) -> None:
    raw = tmp_path / "data/MNIST/raw"
    idx_files(raw)
    file = raw / "train-images-idx3-ubyte.gz"
    whole = file.read_bytes()
    for bad in (whole[: len(whole) // 2], gzip.compress(b"nonsense"), gzip.compress(idx(TRAIN)[:-5])):
        file.write_bytes(bad)
        with pytest.raises(UserError, match="mnist: damaged or altered files"):
            read_source("mnist", str(tmp_path / "data"))


def test_images_without_labels_are_refused(cache: Path, tmp_path: Path) -> None:
    raw = tmp_path / "data/MNIST/raw"
    idx_files(raw)
    (raw / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(LABELS[:7])))
    with pytest.raises(UserError, match=r"20 train images in .* but 7 labels"):
        read_source("mnist", str(tmp_path / "data"))
    (raw / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(LABELS + 5)))
    with pytest.raises(UserError, match=r"train labels 5\.\.14 for 10 classes"):
        read_source("mnist", str(tmp_path / "data"))


def test_a_forged_cifar_archive_is_never_unpickled(cache: Path, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "owned",))

    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
        for name in image_set("cifar10").files:
            data = pickle.dumps(Evil())
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    with pytest.raises(UserError, match="cifar10: damaged or altered"):
        read_source("cifar10", str(tmp_path))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(("name", "file"), [("cifar10", "cifar-10-python.tar.gz"), ("svhn", "train_32x32.mat")])
def test_missing_files_say_what_goes_where(cache: Path, tmp_path: Path, offline: None, name: str, file: str) -> None:
    with pytest.raises(UserError, match=f"{name}: not found in {tmp_path} .*put {file}.* or set task.data-dir"):
        read_source(name, str(tmp_path))


def test_a_data_dir_that_is_not_there(cache: Path) -> None:
    with pytest.raises(UserError, match=r"task\.data-dir = '/no/such': no such folder"):
        read_source("mnist", "/no/such")


def test_a_download_is_quiet(cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def download(known: vision.ImageSet, root: Path, split: str, download: bool) -> object:
        print("noise")
        print("noise", file=sys.stderr)
        if download and split == "train":
            idx_files(root / "MNIST" / "raw", packed=False)
        return opened(known, root, split, download=False)

    opened = vision._open_set
    monkeypatch.setattr(vision, "_answers", lambda address: address.startswith("http"))
    with monkeypatch.context() as patch:
        patch.setattr(vision, "_open_set", download)
        root, files = vision.find_set("mnist", image_set("mnist"), "")
    assert (root, len(files)) == (cache, 4)
    assert "noise" not in "".join(capfd.readouterr())
    assert len(read_source("mnist").train) == 20


def test_a_silent_server_does_not_hang_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision, "SECONDS_TO_ANSWER", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        begin = time.monotonic()
        assert not vision._answers(f"http://127.0.0.1:{server.getsockname()[1]}/")
    assert time.monotonic() - begin < 60


def test_real_mnist_and_fashion_mnist(real_data: Path) -> None:
    mnist = read_source("mnist", str(real_data))
    assert mnist.train.pixels.shape == (60_000, 1, 28, 28)
    assert mnist.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert len(read_source("fashion-mnist", str(real_data)).test) == 2_000


@pytest.mark.parametrize(("name", "labels"), [("cifar10", "targets"), ("cifar100", "targets"), ("svhn", "labels")])
def test_colour_sets_become_channels_first(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, labels: str
) -> None:
    """Their real files carry check sums that cannot be imitated; torchvision's part is played by a stand-in."""
    first = np.random.default_rng(0).integers(0, 256, (10, 3, 32, 32), dtype=np.uint8)
    stored = first if name == "svhn" else first.transpose(0, 2, 3, 1)
    stand_in = SimpleNamespace(data=stored, **{labels: list(range(10))})
    if name != "svhn":
        stand_in.classes = [f"class {i}" for i in range(10)]
    monkeypatch.setattr(vision, "_open_set", lambda *_, **__: stand_in)
    for file in image_set(name).files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    dataset = read_source(name, str(tmp_path))
    np.testing.assert_array_equal(dataset.train.pixels, first)
    assert dataset.classes[3] == ("3" if name == "svhn" else "class 3")

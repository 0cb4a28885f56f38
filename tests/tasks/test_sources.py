"""From a task's name to its images: digits, folders, npz files, subsets, class names."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from thistle.experiments.errors import UserError
from thistle.experiments.settings import Task
from thistle.tasks.dataset import Dataset, Images
from thistle.tasks.sources import load_dataset, map_classes, read_source
from thistle.tasks.training import to_tensors


def picture(value: int | tuple[int, int, int], size: tuple[int, int] = (6, 4), form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("L" if isinstance(value, int) else "RGB", size, value).save(file, form)
    return file.getvalue()


def folder(path: Path, **more: bytes) -> Path:
    """Two classes, gray, 6×4; `train__a__3` in `more` stands for train/a/3.png."""
    files = {f"train__{name}__{i}": picture(i) for name in "ba" for i in (10, 2, 1)}
    for name, data in {**files, "test__a__1": picture(7), **more}.items():
        file = path / (name.replace("__", "/") + ".png")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return path


def npz(path: Path, **changes: Any) -> str:
    arrays: dict[str, Any] = {
        "x_train": np.zeros((6, 5, 4), np.uint8),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": np.zeros((2, 5, 4), np.uint8),
        "y_test": np.array([0, 1]),
    } | changes
    np.savez(path / "a.npz", **{name: array for name, array in arrays.items() if array is not None})
    return f"npz:{path / 'a.npz'}"


# digits -------------------------------------------------------------------------------------------


def test_digits_are_the_same_for_ever() -> None:
    digits = read_source("digits")
    assert digits.train.pixels.shape == (1500, 1, 8, 8)
    assert digits.test.pixels.shape == (297, 1, 8, 8)
    assert digits.classes == tuple("0123456789")
    assert digits.train.pixels.max() == 255
    assert np.ptp(np.bincount(digits.test.labels)) <= 2
    digest = hashlib.sha256(digits.train.pixels.tobytes() + digits.train.labels.tobytes()).hexdigest()
    assert digest[:16] == "06c410b1486f2a8c"


# folder: ------------------------------------------------------------------------------------------


def test_a_folder_in_its_order(cache: Path, tmp_path: Path) -> None:
    data = read_source(f"folder:{folder(tmp_path / 'set')}")
    assert data.classes == ("a", "b")
    assert data.train.pixels.shape == (6, 1, 4, 6)
    assert data.train.pixels[:, 0, 0, 0].tolist() == [1, 2, 10, 1, 2, 10]
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test.pixels[:, 0, 0, 0].tolist() == [7]


def test_an_archive_in_any_order_is_the_same_data(cache: Path, tmp_path: Path) -> None:
    path = folder(tmp_path / "set")
    with tarfile.open(tmp_path / "set.tar.xz", "w:xz") as archive:
        for file in sorted(path.rglob("*.png"), reverse=True):
            archive.add(file, "wrap" / file.relative_to(path))
    one, two = read_source(f"folder:{path}"), read_source(f"folder:{tmp_path / 'set.tar.xz'}")
    np.testing.assert_array_equal(one.train.pixels, two.train.pixels)
    np.testing.assert_array_equal(one.train.labels, two.train.labels)


def test_one_colour_image_makes_all_rgb_and_sizes_follow_the_first(cache: Path, tmp_path: Path) -> None:
    path = folder(tmp_path / "set", train__b__11=picture((9, 8, 7), (12, 12), "JPEG"))
    data = read_source(f"folder:{path}")
    assert data.train.pixels.shape == (7, 3, 4, 6)
    assert np.abs(data.train.pixels[-1, :, 2, 3].astype(int) - (9, 8, 7)).max() <= 3


def deep(dtype: type, value: int, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((4, 6), value, dtype)).save(file, form)
    return file.getvalue()


def test_sixteen_bits_a_pixel_are_kept(cache: Path, tmp_path: Path) -> None:
    data = read_source(f"folder:{folder(tmp_path / 'set', test__b__1=deep(np.uint16, 0x4321))}")
    assert data.test.pixels.dtype == np.uint16 and data.test.pixels[-1, 0, 0, 0] == 0x4321
    assert data.train.pixels[0, 0, 0, 0] == 1 * 257, "images of 8 bits among them are as bright as before"
    inputs, _ = to_tensors(data.test, torch.device("cpu"))
    assert float(inputs[-1].max()) == pytest.approx(0x4321 / 65535)


def test_twelve_bits_reach_from_black_to_white_and_stay_apart(cache: Path, tmp_path: Path) -> None:
    x = np.arange(4096, dtype=np.uint16).reshape(1, 64, 64)
    name = npz(tmp_path, x_train=x, y_train=np.array([0]), x_test=x, y_test=np.array([0]))
    data = read_source(name, options=Task(bits=12))
    assert len(np.unique(data.train.pixels)) == 4096
    inputs, _ = to_tensors(data.train, torch.device("cpu"))
    assert float((inputs.flatten() - torch.arange(4096) / 4095).abs().max()) < 1 / 65535
    path = folder(tmp_path / "set", test__b__1=deep(np.uint16, 4096))
    with pytest.raises(UserError, match=r"test/b/1\.png' has values above 4095, the most that task\.bits = 12 allows"):
        read_source(f"folder:{path}", options=Task(bits=12))


def test_a_deep_pgm_is_scaled_too(cache: Path, tmp_path: Path) -> None:
    pgm = b"P5 6 4 65535\n" + np.full((4, 6), 0x4321, ">u2").tobytes()
    data = read_source(f"folder:{folder(tmp_path / 'set', test__b__1=pgm)}", options=Task(bits=12))
    assert data.test.pixels[-1, 0, 0, 0] == 0x4321, "a PGM says itself what is white"


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_pictures_without_a_scale_are_refused(cache: Path, tmp_path: Path, dtype: type) -> None:
    with pytest.raises(UserError, match=r"'test/b/1.png' \(32 bits per pixel: save it with 8 or 16\)"):
        read_source(f"folder:{folder(tmp_path / 'set', test__b__1=deep(dtype, 5, 'TIFF'))}")


@pytest.mark.parametrize("bad", [b"hello", b"", picture(1)[:40], b"%!PS-Adobe-3.0 EPSF-3.0\n"])
def test_an_unreadable_image_is_named(cache: Path, tmp_path: Path, bad: bytes) -> None:
    with pytest.raises(UserError, match=r"unreadable image 'train/a/4.png'"):
        read_source(f"folder:{folder(tmp_path / 'set', train__a__4=bad)}")
    assert not list(cache.glob("*.tmp"))


@pytest.mark.parametrize("size", [(5000, 4000), (60_000, 60_000)])
def test_a_picture_bomb_is_refused_undecoded(cache: Path, tmp_path: Path, size: tuple[int, int]) -> None:
    header = bytearray(picture(1))
    header[16:24] = size[0].to_bytes(4, "big") + size[1].to_bytes(4, "big")
    header[29:33] = zlib.crc32(bytes(header[12:29])).to_bytes(4, "big")
    with pytest.raises(UserError, match=r"'train/a/4\.png' refused: more than"):
        read_source(f"folder:{folder(tmp_path / 'set', train__a__4=bytes(header))}")


def test_a_changed_folder_is_noticed(cache: Path, tmp_path: Path) -> None:
    path = folder(tmp_path / "set")
    assert len(read_source(f"folder:{path}").train) == 6
    folder(path, train__a__3=picture(3))
    assert len(read_source(f"folder:{path}").train) == 7
    status = (path / "train/a/3.png").stat()
    (path / "train/a/3.png").write_bytes(picture(4))
    os.utime(path / "train/a/3.png", ns=(0, status.st_mtime_ns + 1))
    assert read_source(f"folder:{path}").train.pixels[2, 0, 0, 0] == 4


def test_progress_is_reported(cache: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = folder(tmp_path / "set")
    read_source(f"folder:{path}", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (7, 7)


def test_test_images_may_be_missing_only_when_not_needed(cache: Path, tmp_path: Path) -> None:
    path = folder(tmp_path / "set")
    (path / "test/a/1.png").unlink()
    data = read_source(f"folder:{path}", need_test=False)
    assert data.test.pixels.shape == (0, 1, 4, 6)
    with pytest.raises(UserError, match="no test images"):
        read_source(f"folder:{path}")
    name = npz(tmp_path, x_test=None, y_test=None)
    assert len(read_source(name, need_test=False).test) == 0
    with pytest.raises(UserError, match=r"task\.server-data = 'npz:.*no test images"):
        read_source(name, key="task.server-data")


def test_training_images_may_not(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "set/test/a").mkdir(parents=True)
    (tmp_path / "set/test/a/1.png").write_bytes(picture(1))
    with pytest.raises(UserError, match="no training images"):
        read_source(f"folder:{tmp_path / 'set'}", need_test=False)


# npz: ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 4), (1, 5, 4)),
        ((5, 4, 3), (3, 5, 4)),
        ((5, 4, 1), (1, 5, 4)),
        ((3, 5, 4), (3, 5, 4)),
        ((1, 5, 4), (1, 5, 4)),
    ],
)
def test_npz_shapes(cache: Path, tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(0, 256, (6, *shape), dtype=np.uint8)
    data = read_source(npz(tmp_path, x_train=x, x_test=x[:2]))
    assert data.train.shape == expected
    assert sorted(data.train.pixels[0].ravel()) == sorted(x[0].ravel())
    assert data.classes == ("0", "1", "2")


def test_npz_floats_and_classes(cache: Path, tmp_path: Path) -> None:
    x = np.linspace(0, 1, 6 * 20, dtype=np.float32).reshape(6, 5, 4)
    data = read_source(npz(tmp_path, x_train=x, x_test=x[:2].astype(np.float64), classes=np.array(["a", "b", "c"])))
    assert data.train.shape == (1, 5, 4) and data.train.bounds == (0, 1)
    assert data.train.pixels.ravel().tolist() == x.ravel().tolist(), "nothing is rounded"
    assert data.classes == ("a", "b", "c")


def test_floats_that_came_from_eight_bits_are_stored_as_such(cache: Path, tmp_path: Path) -> None:
    eight = (np.arange(6 * 20, dtype=np.float32) / 255).reshape(6, 5, 4)
    data = read_source(npz(tmp_path, x_train=eight, x_test=eight[:2] / 2))
    assert data.train.pixels.dtype == np.uint8 and data.train.pixels.ravel().tolist() == list(range(120))
    assert data.test.pixels.dtype == np.float32


@pytest.mark.parametrize("shape", [(7,), (12, 30), (4, 6, 6), (2, 3, 4, 5)])
def test_values_of_any_shape(cache: Path, tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=(6, *shape))
    data = read_source(npz(tmp_path, x_train=x, x_test=x[:2].astype(np.float32)))
    assert data.shape == shape and data.train.pixels.dtype == np.float32
    assert data.train.bounds == (-np.inf, np.inf)
    inputs, _ = to_tensors(data.train, torch.device("cpu"))
    np.testing.assert_array_equal(inputs.numpy(), x.astype(np.float32))


def test_series_in_0_1_need_the_word_and_images_that_are_not_scaled_are_refused(cache: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((6, 12, 30)).astype(np.float32)
    series = npz(tmp_path, x_train=x, x_test=x[:2], kind=np.array("values"))
    assert read_source(series).shape == (12, 30)
    bright = np.full((6, 5, 4), 200.0)
    with pytest.raises(UserError, match=r"outside \[0, 1\] \(200\.\.200\): divide images .* kind = 'values'"):
        read_source(npz(tmp_path, x_train=bright, x_test=bright))
    with pytest.raises(UserError, match="kind = 'series': should be images or values"):
        read_source(npz(tmp_path, kind=np.array("series")))


def test_labels_may_be_texts(cache: Path, tmp_path: Path) -> None:
    labels = {"y_train": np.array(["no", "yes", "no", "no", "yes", "no"]), "y_test": np.array(["yes", "no"])}
    data = read_source(npz(tmp_path, **labels))
    assert data.classes == ("no", "yes") and data.test.labels.tolist() == [1, 0]
    ordered = read_source(npz(tmp_path, **labels, classes=np.array(["yes", "no"])))
    assert ordered.classes == ("yes", "no") and ordered.test.labels.tolist() == [0, 1]
    with pytest.raises(UserError, match="label 'yes' is not one of the classes no"):
        read_source(npz(tmp_path, **labels, classes=np.array(["no"])))


def test_labels_from_one_on_make_no_class_zero(cache: Path, tmp_path: Path) -> None:
    labels = {"y_train": np.array([1, 2, 3, 1, 2, 3]), "y_test": np.array([3, 1])}
    data = read_source(npz(tmp_path, **labels))
    assert data.classes == ("1", "2", "3")
    assert data.train.labels.tolist() == [0, 1, 2, 0, 1, 2] and data.test.labels.tolist() == [2, 0]
    named = read_source(npz(tmp_path, **labels, classes=np.array(["none", "a", "b", "c"])))
    assert named.classes == ("none", "a", "b", "c") and named.train.labels.tolist() == [1, 2, 3, 1, 2, 3]
    site = map_classes(data, ("0", "1", "2", "3"), "a site's")
    assert site.train.labels.tolist() == [1, 2, 3, 1, 2, 3], "by name: a site may lack images of class 0"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_train": None}, "array x_train is missing"),
        ({"y_test": None}, "array y_test is missing"),
        ({"x_train": np.zeros((6, 5))}, "different shapes"),
        ({"x_train": np.zeros((6, 5, 4, 2), np.uint8)}, "x_train has shape"),
        ({"x_train": np.zeros((6, 0, 4), np.uint8)}, "x_train has shape"),
        ({"x_train": np.zeros((6, 5, 4), np.int32)}, "x_train is int32"),
        ({"x_train": np.full((6, 5, 4), 2.0)}, "outside"),
        ({"x_train": np.full((6, 5, 4), np.nan)}, "not finite"),
        ({"x_test": np.zeros((2, 5, 5), np.uint8)}, "different shapes"),
        ({"x_train": np.zeros((0, 5, 4), np.uint8), "y_train": np.zeros(0, int)}, "no training images"),
        ({"y_train": np.zeros(5, int)}, "x_train has 6 rows, y_train has 5 labels"),
        ({"y_train": np.zeros(6)}, "y_train is float64 .*: regression is not supported"),
        ({"y_train": np.array([0, 1, 2, 0, 1, -1])}, "labels -1"),
        ({"classes": np.array(["a", "b"])}, "labels 0..2 for 2 classes"),
        ({"classes": np.array(["a", "b", "a"])}, "all different"),
        ({"classes": np.array([1, 2, 3])}, "expected strings"),
        ({"classes": np.array(["a", None], dtype=object)}, "not a readable npz"),
    ],
)
def test_bad_npz_files_are_refused(cache: Path, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_source(npz(tmp_path, **changes))


def test_damaged_npz_files_are_refused(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = npz(tmp_path)
    whole = (tmp_path / "a.npz").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("thistle.tasks.sources.npz.NPZ_BYTES", 100)
        with pytest.raises(UserError, match="more than 100 bytes"):
            read_source(name)
    for bad in (whole[:200], b"nonsense", b""):
        (tmp_path / "a.npz").write_bytes(bad)
        with pytest.raises(UserError, match=r"a\.npz: not a readable npz"):
            read_source(name)


# names, subsets, classes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"),
    [("cifar-10", "cifar10"), ("Fashion_MNIST", "fashion-mnist"), ("folder:", "folder:PATH"), ("", "")],
)
def test_an_unknown_name_is_answered_by_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UserError, match=rf"task\.name = '{name}' is unknown; did you mean '{near}"):
        read_source(name)


@pytest.mark.parametrize("name", ["folder:/no/such/place", "npz:/no/such.npz"])
def test_a_missing_path_is_named(cache: Path, name: str) -> None:
    with pytest.raises(UserError, match="/no/such"):
        read_source(name)


@pytest.mark.parametrize("size", [1, 7, 10, 500, 1499])
def test_train_size_takes_every_class_by_its_share(size: int) -> None:
    whole, part = load_dataset(Task(name="digits")), load_dataset(Task(name="digits", train_size=size))
    assert len(part.train) == size
    assert isinstance(part.train.pixels, np.memmap)
    share = np.bincount(whole.train.labels) * size / len(whole.train)
    assert np.abs(np.bincount(part.train.labels, minlength=10) - share).max() < 1
    np.testing.assert_array_equal(part.test.pixels, whole.test.pixels)


def test_train_size_beyond_what_there_is() -> None:
    assert len(load_dataset(Task(name="digits", train_size=1500)).train) == 1500
    with pytest.raises(UserError, match=r"task\.train-size = 1501: digits has only 1500"):
        load_dataset(Task(name="digits", train_size=1501))


def test_classes_are_mapped_by_name() -> None:
    pixels = np.zeros((3, 1, 2, 2), np.uint8)
    own = Dataset(
        "mine", ("cat", "ant"), Images(pixels, np.array([0, 1, 0])), Images(pixels[:0], np.zeros(0, np.int64))
    )
    mapped = map_classes(own, ("ant", "bee", "cat"), "node 7")
    assert mapped.classes == ("ant", "bee", "cat")
    assert mapped.train.labels.tolist() == [2, 0, 2]
    with pytest.raises(
        UserError, match=r"node 7 has classes that the task lacks: cat; .* remove them; the task's classes are ant, bee"
    ):
        map_classes(own, ("ant", "bee"), "node 7")


# real data ----------------------------------------------------------------------------------------


def test_real_npz_and_server_images(real_data: Path) -> None:
    assert len(read_source(f"npz:{real_data / 'emnist-bymerge-sample.npz'}").classes) == 47
    server = read_source(f"folder:{real_data / 'stl10-server.tar.xz'}", need_test=False)
    assert server.train.pixels.shape == (900, 3, 32, 32)


@pytest.mark.slow
def test_real_cifar10(real_data: Path) -> None:
    data = load_dataset(Task(name=f"folder:{real_data / 'cifar10-jpeg.tar.xz'}", train_size=1000))
    assert np.bincount(data.train.labels).tolist() == [100] * 10
    assert data.test.pixels.shape == (10_000, 3, 32, 32)

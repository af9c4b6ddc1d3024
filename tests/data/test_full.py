"""The complete sets, without a network: small made files, and a server on this machine."""

import dataclasses
import functools
import gzip
import hashlib
import http.server
import io
import struct
import tarfile
import threading

import numpy as np
import pytest
import scipy.io
import torch

from deqbook.data import DataError, full, gray28, load_full, select

CLOSED = "http://127.0.0.1:9/"  # the discard port: refused at once, no name to look up


def idx_gz(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.tobytes())


def labels_of(n, rng):
    # Every ten samples in a row hold every class, so that each batch of a made set does.
    return np.concatenate([rng.permutation(10) for _ in range(n // 10)]).astype(np.uint8)


def made_idx(rng):
    x = {"train": rng.integers(1, 255, (200, 28, 28), dtype=np.uint8)}
    x["t10k"] = rng.integers(1, 255, (100, 28, 28), dtype=np.uint8)
    y = {stem: labels_of(len(x[stem]), rng) for stem in x}
    files = {f"{stem}-images-idx3-ubyte.gz": idx_gz(x[stem]) for stem in x}
    files |= {f"{stem}-labels-idx1-ubyte.gz": idx_gz(y[stem]) for stem in x}
    return files, (x["train"], y["train"]), (x["t10k"], y["t10k"])


def made_cifar(rng):
    x, y = rng.integers(1, 255, (120, 32, 32, 3), dtype=np.uint8), labels_of(120, rng)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for k in range(6):
            part = slice(20 * k, 20 * k + 20)
            planes = x[part].transpose(0, 3, 1, 2).reshape(20, -1)
            raw = np.concatenate((y[part, None], planes), axis=1).tobytes()
            stem = f"data_batch_{k + 1}" if k < 5 else "test_batch"
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{stem}.bin")
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return {"cifar-10-binary.tar.gz": buffer.getvalue()}, (x[:100], y[:100]), (x[100:], y[100:])


def made_svhn(rng):
    files, splits = {}, []
    for name in ("train", "test"):
        x, y = rng.integers(1, 255, (40, 32, 32, 3), dtype=np.uint8), labels_of(40, rng)
        buffer = io.BytesIO()
        coded = np.where(y == 0, 10, y).reshape(-1, 1)
        scipy.io.savemat(buffer, {"X": x.transpose(1, 2, 3, 0), "y": coded})
        files[f"{name}_32x32.mat"] = buffer.getvalue()
        splits.append((x, y))
    return files, *splits


MAKERS = {"mnist": made_idx, "fashion": made_idx, "cifar10": made_cifar, "svhn": made_svhn}


def md5(raw):
    return hashlib.md5(raw).hexdigest()


@pytest.fixture
def made(request, tmp_path, monkeypatch):
    """A small set in place of the real one: files in the folder, checksums to match, no server."""
    name = request.param
    files, train, test = MAKERS[name](np.random.default_rng(5))
    source = dataclasses.replace(
        full._SOURCES[name],
        servers=(CLOSED,),
        md5={file: md5(raw) for file, raw in files.items()},
    )
    monkeypatch.setitem(full._SOURCES, name, source)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / name).mkdir()
    for file, raw in files.items():
        (tmp_path / name / file).write_bytes(raw)
    return name, train, test, tmp_path


def expected(split, keep):
    x, y = split[0][keep], split[1][keep]
    x = gray28(x) if x.ndim == 4 else x
    return x.reshape(len(x), -1) / 255, y


@pytest.mark.parametrize("made", MAKERS, indirect=True)
def test_whole_set_comes_in_file_order(made):
    name, train, test, folder = made
    data = load_full(name, norm=None, folder=folder)
    for split, x, y in ((train, data.x_train, data.y_train), (test, data.x_test, data.y_test)):
        pixels, labels = expected(split, slice(None))
        assert np.array_equal(x.numpy(), pixels)
        assert y.tolist() == labels.tolist()
    assert len(data.classes) == 10


@pytest.mark.parametrize("made", MAKERS, indirect=True)
def test_two_classes_follow_the_rule_of_the_bundled_files(made):
    name, train, test, folder = made
    data = load_full(name, classes=(0, 1), per_class=2, norm=None, folder=folder)
    for split, x, y in ((train, data.x_train, data.y_train), (test, data.x_test, data.y_test)):
        pixels, labels = expected(split, select(split[1], (0, 1), 2))
        assert np.array_equal(x.numpy(), pixels)
        assert y.tolist() == [1.0 if label == 1 else -1.0 for label in labels]
    unit = load_full(name, classes=(0, 1), per_class=2, folder=folder)
    assert (unit.x_train.norm(dim=1) - 1).abs().max() < 1e-12


@pytest.mark.parametrize("made", ["mnist"], indirect=True)
def test_sizes_may_differ_between_train_and_test(made):
    name, _, _, folder = made
    data = load_full(name, per_class=(5, 3), folder=folder, dtype=torch.float32)
    assert data.y_train.bincount().tolist() == [5] * 10
    assert data.y_test.bincount().tolist() == [3] * 10
    assert data.x_train.dtype == torch.float32


@pytest.mark.parametrize("made", ["cifar10", "svhn"], indirect=True)
def test_colour_can_be_kept(made):
    name, train, _, folder = made
    data = load_full(name, gray=False, flatten=False, norm=None, folder=folder)
    assert data.x_train.shape == (len(train[0]), 3, 32, 32)
    assert np.array_equal(data.x_train[0].permute(1, 2, 0).numpy(), train[0][0] / 255)


@pytest.mark.parametrize("made", ["mnist"], indirect=True)
def test_no_network_names_file_url_and_place(made):
    name, _, _, folder = made
    file = "t10k-images-idx3-ubyte.gz"
    (folder / name / file).unlink()
    with pytest.raises(DataError) as caught:
        load_full(name, folder=folder)
    text = str(caught.value)
    assert f"could not get {file} with MD5 {full._SOURCES[name].md5[file]}" in text
    assert f"{CLOSED}{file}: no download (" in text
    assert f"put it at {folder / name / file}" in text
    assert "there is a file" not in text


@pytest.mark.parametrize("made", ["mnist"], indirect=True)
def test_a_wrong_manual_download_is_told_apart(made):
    name, _, _, folder = made
    (folder / name / "train-labels-idx1-ubyte.gz").write_bytes(b"something else")
    with pytest.raises(
        DataError, match=f"there is a file, but its MD5 is {md5(b'something else')}"
    ):
        load_full(name, folder=folder)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serves a folder of this test on the loopback interface."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    root = tmp_path / "www"
    root.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Quiet, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield root, f"http://127.0.0.1:{httpd.server_port}/"
        httpd.shutdown()


def test_next_server_is_tried_and_the_file_is_kept(server, tmp_path):
    root, url = server
    (root / "a.bin").write_bytes(b"payload")
    home = tmp_path / "home"
    got = full._fetch_one((CLOSED, url), "a.bin", md5(b"payload"), home)
    assert got.read_bytes() == b"payload"
    (root / "a.bin").unlink()
    assert full._fetch_one((CLOSED, url), "a.bin", md5(b"payload"), home) == got


def test_a_wrong_checksum_is_reported_and_nothing_is_kept(server, tmp_path):
    root, url = server
    (root / "a.bin").write_bytes(b"tampered")
    with pytest.raises(DataError, match=rf"{url}a\.bin: wrong checksum"):
        full._fetch_one((url,), "a.bin", md5(b"payload"), tmp_path / "home")
    assert not (tmp_path / "home" / "a.bin").exists()


def test_a_missing_file_on_the_server_is_no_download(server, tmp_path):
    _, url = server
    with pytest.raises(DataError, match=r"a\.bin: no download \(404"):
        full._fetch_one((url,), "a.bin", md5(b"payload"), tmp_path / "home")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: load_full("mnist01"), "no complete data set is called 'mnist01'; there are mnist"),
        (lambda: load_full("mnist", classes=(1, 0)), r"increasing order, got \(1, 0\)"),
        (lambda: load_full("mnist", classes=(0, 10)), "labels from 0 to 9"),
        (lambda: load_full("mnist", classes=()), r"got \(\)"),
    ],
)
def test_wrong_arguments_fail_before_any_download(call, sentence, monkeypatch):
    monkeypatch.setattr(full, "_fetch", lambda *_: pytest.fail("tried to download"))
    with pytest.raises(ValueError, match=sentence):
        call()


def test_every_source_has_ten_classes_and_checksums():
    for source in full._SOURCES.values():
        assert len(set(source.classes)) == 10
        assert all(len(value) == 32 for value in source.md5.values())

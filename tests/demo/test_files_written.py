"""A file that a command writes is whole or as it was, and a place that cannot be written is refused before the work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from demo import files
from demo.files import CannotWrite, check_writable, write_text
from layerwise.contrib import _files as beside


def raising(problem):
    def call(*_, **__):
        raise problem

    return call


def test_a_file_is_whole_or_as_it_was_and_keeps_its_mode(tmp_path, monkeypatch):
    path = tmp_path / "report"
    path.write_text("before")
    path.chmod(0o640)
    write_text(path, "after")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("after", 0o640)
    monkeypatch.setattr(Path, "replace", raising(OSError(28, "No space left on device")))
    with pytest.raises(CannotWrite, match="No space left"):
        write_text(path, "lost")
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


def test_folders_are_made_when_it_is_written_and_not_before(tmp_path):
    path = tmp_path / "new" / "er" / "rows.csv"
    check_writable(path)
    assert not (tmp_path / "new").exists()
    write_text(path, "text")
    assert path.read_text() == "text"
    with pytest.raises(CannotWrite, match="it is the name of a folder"):
        files.as_file("new/")
    with pytest.raises(CannotWrite, match=r"rows\.csv is not a folder"):
        check_writable(path / "beside")
    with pytest.raises(CannotWrite, match="it is a folder"):
        check_writable(tmp_path)


@pytest.mark.parametrize("name", ["a\0.html", "x" * 300 + ".html", "circle.html", "\x1b[31m\n/file/r.html"], ids=repr)
def test_a_path_that_no_file_can_have_is_one_line(name, tmp_path):
    (tmp_path / "circle.html").symlink_to("circle.html")
    (tmp_path / "\x1b[31m\n").mkdir()
    (tmp_path / "\x1b[31m\n" / "file").touch()
    for refused in (check_writable, lambda path: write_text(path, "text")):
        with pytest.raises(CannotWrite) as found:
            refused(tmp_path / name)
        assert str(found.value).isprintable()


def test_no_file_that_was_put_there_before_is_written_to(tmp_path, monkeypatch):
    """Not through links either, by whatever name: it need not be guessed."""
    monkeypatch.setattr(beside, "token_hex", lambda n: "known")
    (tmp_path / "precious").write_text("as it was")
    (tmp_path / ".layerwise-known").symlink_to("precious")
    with pytest.raises(CannotWrite, match="File exists"):
        write_text(tmp_path / "report.html", "text")
    assert (tmp_path / "precious").read_text() == "as it was"
    assert {path.name for path in tmp_path.iterdir()} == {"precious", ".layerwise-known"}


def test_a_link_stays_one(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "report")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "report").read_text() == "text"


@pytest.mark.parametrize("name", ["link", "old", "new"])
def test_what_is_replaced_needs_its_folder(name, tmp_path, monkeypatch):
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "old").touch()
    (tmp_path / "link").symlink_to(folder / "old")
    path = tmp_path / "link" if name == "link" else folder / name
    check_writable(path)
    monkeypatch.setattr(files.os, "access", lambda where, mode: where != folder)
    with pytest.raises(CannotWrite, match="no permission to write in"):
        check_writable(path)


def test_what_is_written_to_and_not_replaced_needs_no_folder_and_stays_a_pipe(tmp_path, monkeypatch):
    """Not one of the system's devices, which an error in here would replace for everybody."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setattr(files.os, "access", lambda where, mode: where == pipe)
    check_writable(pipe)
    write_text(pipe, "text")
    assert os.read(reader, 9) == b"text"
    os.close(reader)
    assert pipe.is_fifo()
    monkeypatch.setattr(files.os, "access", lambda where, mode: False)
    with pytest.raises(CannotWrite, match="no permission"):
        check_writable(pipe)

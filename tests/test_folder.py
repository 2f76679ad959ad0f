from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pytest

from workbench.folder import Checkpoints, filesystem_type, read_config, refuse_network, write_file, writing
from workbench.types import WorkbenchError

MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
tmpfs /home/local tmpfs rw 0 0
//box/share /mnt/my\\040share cifs rw 0 0
user@host: /mnt/ssh fuse.sshfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/run", "ext4"),
        ("/homework/run", "ext4"),
        ("/home/me/run", "nfs4"),
        ("/home/local/run", "tmpfs"),
        ("/mnt/my share/run", "cifs"),
        ("/mnt/ssh", "fuse.sshfs"),
    ],
)
def test_the_innermost_mount_counts(path: str, kind: str) -> None:
    assert filesystem_type(Path(path), MOUNTS) == kind


def test_network_file_systems_are_refused() -> None:
    refuse_network(Path("/data/run"), MOUNTS)
    with pytest.raises(WorkbenchError, match=r"network file system \(nfs4\).*local disk"):
        refuse_network(Path("/home/me/run"), MOUNTS)


def test_the_machine_itself_is_readable(tmp_path: Path) -> None:
    refuse_network(tmp_path)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    write_file(tmp_path / "a", "one")
    write_file(tmp_path / "a", "two")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "two"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/srv/full-ft/r1"), "choose a folder you may write"),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "/srv/unable to open/r1"), "mend this or choose another"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full or failing"),
        (sqlite3.OperationalError("database or disk is full"), "the disk is full or failing"),
        (sqlite3.OperationalError("disk I/O error"), "the disk is full or failing"),
        (sqlite3.OperationalError("attempt to write a readonly database"), "choose a folder you may write"),
    ],
)
def test_what_is_wrong_is_not_read_from_the_names_of_folders(error: Exception, sentence: str) -> None:
    assert sentence in str(writing(Path("/srv/full-ft/r1"), error))


@pytest.mark.parametrize("content", ["7" * 5000, "seven", ""])
def test_a_marker_that_names_no_step_is_told(content: str, tmp_path: Path) -> None:
    (tmp_path / "latest").write_text(content)
    with pytest.raises(WorkbenchError, match="not a step: write the number of a checkpoint") as told:
        Checkpoints(tmp_path).find()
    assert len(str(told.value)) < 300 + len(str(tmp_path))


@pytest.mark.parametrize("content", ["[" * 200_000, '{"format": ' + "7" * 5000 + "}", "[]", ""])
def test_a_config_that_no_run_wrote_is_told(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(WorkbenchError, match=r"cannot be read .* expected the file that the run wrote"):
        read_config(tmp_path)

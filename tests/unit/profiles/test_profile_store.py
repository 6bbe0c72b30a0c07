# SPDX-License-Identifier: MIT
"""The folder of profiles: whole files, trust, damage, room, and writers that are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from hmd.base.errors import HmdError, MissingError, NotPermittedError, TargetError, UsageError
from hmd.linux.mappings import MappingKind
from hmd.profiles import store as store_module
from hmd.profiles.objects import ObjectKey
from hmd.profiles.profile import Profile, ProfileObject
from hmd.profiles.store import ProfileStore

KEY = "cg-1000-0123456789abcdef"
OTHER = "bfs-1000-fedcba9876543210"


def profile(blocks: int = 4, hot: int = 0, phases: int = 1) -> Profile:
    counts = np.ones((phases, blocks), np.float32)
    counts[:, hot] = 1000
    heap = ProfileObject(ObjectKey(MappingKind.HEAP, ""), float(1 << 24), blocks)
    return Profile((heap,), counts, 1.0, 12.5)


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    folder = tmp_path / "profiles"
    folder.mkdir(0o700)
    return ProfileStore(folder)


def names(store: ProfileStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir())


def test_run_is_loaded_again_from_a_private_file(store: ProfileStore) -> None:
    assert store.load(KEY) is None
    written = store.add_run(KEY, profile(), None, None)
    loaded = store.load(KEY)
    assert loaded is not None
    assert loaded.to_bytes() == written
    assert loaded.objects == profile().objects
    assert store.path_of(KEY).stat().st_mode & 0o777 == 0o600
    assert names(store) == [f"{KEY}.profile"]


def test_later_saves_of_a_run_replace_its_earlier_ones(store: ProfileStore) -> None:
    first = store.add_run(KEY, profile(), None, None)
    second = store.add_run(KEY, profile(hot=1), None, first)
    assert Profile.from_bytes(second, KEY).runs == 1.0


def test_next_run_is_merged(store: ProfileStore) -> None:
    store.add_run(KEY, profile(), None, None)
    former = store.load(KEY)
    store.add_run(KEY, profile(hot=1), former, None)
    loaded = store.load(KEY)
    assert loaded is not None
    assert loaded.runs > 1.0
    assert (loaded.counts[0, :2] > 500).all()


def test_what_others_wrote_during_a_run_is_merged(store: ProfileStore) -> None:
    mine = store.add_run(KEY, profile(), None, None)
    ProfileStore(store.folder).write(KEY, profile(hot=3).to_bytes())
    store.add_run(KEY, profile(), None, mine)
    loaded = store.load(KEY)
    assert loaded is not None
    assert (loaded.counts[0, [0, 3]] > 500).all()


def test_damaged_file_is_refused_named_and_kept(store: ProfileStore) -> None:
    data = bytearray(store.add_run(KEY, profile(), None, None))
    data[len(data) // 2] ^= 1
    store.path_of(KEY).write_bytes(data)
    with pytest.raises(HmdError, match=rf"{KEY}\.profile .*kept as {KEY}\.damaged"):
        store.load(KEY)
    assert (store.folder / f"{KEY}.damaged").read_bytes() == data
    assert store.load(KEY) is None
    store.add_run(KEY, profile(), None, None)
    assert names(store) == [f"{KEY}.damaged", f"{KEY}.profile"]


@pytest.mark.parametrize("content", [b"", b"\0" * 500, b"{}", Random(45).randbytes(1 << 19)])
def test_garbage_is_refused(store: ProfileStore, content: bytes) -> None:
    store.path_of(KEY).write_bytes(content)
    store.path_of(KEY).chmod(0o600)
    with pytest.raises(HmdError, match=KEY):
        store.load(KEY)


def test_each_changed_byte_is_refused_or_the_same_profile(store: ProfileStore) -> None:
    data, random = profile(64, phases=4).to_bytes(), Random(45)
    for _ in range(500):
        changed = bytearray(data)
        changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
        with pytest.raises(HmdError):
            Profile.from_bytes(bytes(changed), KEY)


def test_file_that_others_may_write_is_refused(store: ProfileStore) -> None:
    store.add_run(KEY, profile(), None, None)
    store.path_of(KEY).chmod(0o620)
    with pytest.raises(NotPermittedError, match="may be written by others"):
        store.load(KEY)
    assert names(store) == [f"{KEY}.profile"]


def test_link_pipe_and_folder_are_refused_without_waiting(store: ProfileStore) -> None:
    target = store.folder / "elsewhere"
    target.write_bytes(profile().to_bytes())
    path = store.path_of(KEY)
    path.symlink_to(target)
    with pytest.raises(HmdError, match="cannot read"):
        store.load(KEY)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(NotPermittedError, match="no regular file"):
        store.load(KEY)
    path.unlink()
    path.mkdir()
    with pytest.raises(HmdError):
        store.load(KEY)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_foreign_owner_is_refused_unless_named(store: ProfileStore) -> None:
    store.write(KEY, profile().to_bytes())
    os.chown(store.path_of(KEY), 4711, 4711)
    with pytest.raises(NotPermittedError, match=r"belongs to user 4711.*profiles\.owners"):
        store.load(KEY)
    assert ProfileStore(store.folder, [4711]).load(KEY) is not None
    # A run replaces what is not trusted, without what it says.
    written = store.add_run(KEY, profile(hot=2), None, None)
    assert Profile.from_bytes(written, KEY).runs == 1.0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_file_that_root_writes_is_of_the_owner_of_the_folder(store: ProfileStore) -> None:
    os.chown(store.folder, 4711, 4712)
    store.write(KEY, profile().to_bytes())
    status = store.path_of(KEY).stat()
    assert (status.st_uid, status.st_gid) == (4711, 4712)


def keys(count: int) -> Sequence[str]:
    return [f"program-0-{number:016x}" for number in range(count)]


def test_least_recently_used_leave(store: ProfileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    data = profile(64).to_bytes()
    monkeypatch.setattr(store_module, "MAX_TOTAL_BYTES", 4 * len(data))
    now_s = time.time()
    for age_s, key in enumerate(keys(4)):
        store.write(key, data)
        os.utime(store.path_of(key), (now_s - age_s - 10, now_s - age_s - 10))
    assert store.load(keys(4)[3]) is not None  # the oldest is used
    store.write(KEY, data)
    assert {one.key for one in store.entries()} == {KEY, *keys(4)} - {keys(4)[2]}


def test_damaged_files_leave_for_room_too(
    store: ProfileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = profile(64).to_bytes()
    old = store.folder / f"{OTHER}.damaged"
    old.write_bytes(data)
    os.utime(old, (1, 1))
    monkeypatch.setattr(store_module, "MAX_TOTAL_BYTES", len(data))
    store.write(KEY, data)
    assert names(store) == [f"{KEY}.profile"]


def _write_for_ever(folder: Path) -> None:
    store, data = ProfileStore(folder), profile(2048, phases=64).to_bytes()
    while True:
        store.write(KEY, data)


def test_kill_leaves_a_whole_file_and_what_it_left_is_removed(store: ProfileStore) -> None:
    context = multiprocessing.get_context("fork")
    for wait_s in (0.05, 0.06, 0.07, 0.08):
        writer = context.Process(target=_write_for_ever, args=(store.folder,))
        writer.start()
        while not store.path_of(KEY).exists():
            time.sleep(0.01)
        time.sleep(wait_s)
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        assert store.load(KEY) is not None
    left = [store.folder / name for name in names(store) if name.endswith(".partial")]
    for path in [*left, store.folder / f"{KEY}.0123456789abcdef.partial"]:
        path.touch()
        os.utime(path, (1, 1))
    store.write(KEY, profile().to_bytes())
    assert names(store) == [f"{KEY}.profile"]


def test_writers_at_once_leave_one_of_their_profiles(store: ProfileStore) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_for_ever, args=(store.folder,)) for _ in range(3)]
    for writer in writers:
        writer.start()
    try:
        deadline_s = time.monotonic() + 30
        loaded = 0
        while loaded < 50 and time.monotonic() < deadline_s:
            loaded += store.load(KEY) is not None
    finally:
        for writer in writers:
            writer.kill()
            writer.join()
    assert loaded == 50


def test_folder_that_is_absent_or_forbidden_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"no folder .*no-folder"):
        ProfileStore(tmp_path / "no-folder").entries()
    with pytest.raises(HmdError, match="cannot write"):
        ProfileStore(tmp_path / "no-folder").write(KEY, profile().to_bytes())


@pytest.mark.parametrize("key", ["", "../etc-0-0123456789abcdef", "a/b-0-0123456789abcdef", "cg"])
def test_what_is_no_key_is_no_path(store: ProfileStore, key: str) -> None:
    with pytest.raises(ValueError, match="no key"):
        store.path_of(key)


def test_names_of_people_mean_keys(store: ProfileStore) -> None:
    for key in (KEY, OTHER, "cg-1001-0123456789abcdef"):
        store.write(key, profile().to_bytes())
    assert store.resolve("bfs") == OTHER
    assert store.resolve("b") == OTHER
    assert store.resolve(KEY) == KEY
    with pytest.raises(UsageError, match="may be"):
        store.resolve("cg")
    with pytest.raises(TargetError, match="no profile 'pagerank'"):
        store.resolve("pagerank")


def test_other_files_of_the_folder_are_no_profiles_and_stay(
    store: ProfileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.folder / "notes.txt").write_text("mine")
    (store.folder / "x.profile").write_text("no key")
    os.utime(store.folder / "x.profile", (1, 1))
    monkeypatch.setattr(store_module, "MAX_TOTAL_BYTES", 0)
    store.write(KEY, replace(profile(), runs=2.0).to_bytes())
    assert not store.entries()
    assert names(store) == ["notes.txt", "x.profile"]


@pytest.mark.skipif(os.geteuid() != 0, reason="root becomes another user")
def test_folder_of_another_user_is_forbidden_not_absent(store: ProfileStore) -> None:
    store.write(KEY, profile().to_bytes())
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        for call in (store.entries, lambda: store.load(KEY), lambda: store.remove(KEY)):
            try:
                call()
            except NotPermittedError:
                os.write(write, b"x")
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    assert os.read(read, 10) == b"xxx"
    os.close(read)

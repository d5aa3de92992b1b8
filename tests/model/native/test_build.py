import os

import pytest

from unmask.model.native import build


@pytest.fixture(autouse=True)
def empty_home(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_HOME", str(tmp_path / "home"))
    build.library.cache_clear()
    yield
    build.library.cache_clear()


def test_it_is_compiled_once_and_says_so(tmp_path):
    said = []
    build.library(said.append, "-O0")
    build.library.cache_clear()
    build.library(said.append, "-O0")
    assert said == ["compiling the CPU kernel once (a few seconds)"]
    assert {file.suffix for file in (tmp_path / "home" / "kernel").iterdir()} == {".so", ".sha256"}


def test_without_a_compiler_the_reason_says_what_to_install(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    with pytest.raises(build.NoKernel, match="no C compiler .*; install one, or set CC"):
        build.library(lambda line: None)


def test_a_compiler_that_fails_is_quoted(monkeypatch):
    monkeypatch.setenv("CC", "false")
    with pytest.raises(build.NoKernel, match="false cannot compile the kernel: exit code 1"):
        build.library(lambda line: None)


def test_a_compiler_that_does_not_exist_and_a_home_that_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(build.NoKernel, match="CC is 'no-such-compiler', and there is no program"):
        build.library(lambda line: None)
    (tmp_path / "file").touch()
    monkeypatch.setenv("UNMASK_HOME", str(tmp_path / "file"))
    with pytest.raises(build.NoKernel, match="may not be read; set UNMASK_HOME"):
        build.library(lambda line: None)


def test_what_a_killed_compilation_left_is_swept_away(tmp_path):
    old, young = (tmp_path / "home" / "kernel" / name for name in ("tmpold", "tmpyoung"))
    for folder in (old, young):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    build.library(lambda line: None, "-O0")
    assert not old.exists() and young.exists()


def test_without_a_home_the_reason_names_the_variable(monkeypatch):
    monkeypatch.delenv("UNMASK_HOME")
    monkeypatch.setattr(build.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(build.NoKernel, match="no home directory; set UNMASK_HOME"):
        build.library(lambda line: None, "-O0")


def test_a_compiler_may_be_several_words(monkeypatch):
    monkeypatch.setenv("CC", "env gcc")
    assert build.library(lambda line: None, "-O0").unmask_panel() in (16, 32)


def test_a_library_that_cannot_be_loaded_is_not_compiled_at_every_start(monkeypatch):
    said = []
    with pytest.raises(build.NoKernel, match="compiled and cannot be loaded"):
        build.library(said.append, "-O0", "-Dmemset=no_such_function")
    with pytest.raises(build.NoKernel, match="remove .* to try again"):
        build.library(said.append, "-O0", "-Dmemset=no_such_function")
    assert len(said) == 1


@pytest.mark.parametrize(
    "damage", [lambda b: b"not a library", lambda b: b[: len(b) // 2], lambda b: b[:-99] + bytes(99)]
)
def test_a_damaged_library_is_made_again(damage, tmp_path):
    build.library(lambda line: None, "-O0")
    [file] = (tmp_path / "home" / "kernel").glob("*.so")
    whole = file.read_bytes()
    file.unlink()  # what is loaded must not change under the process
    file.write_bytes(damage(whole))
    build.library.cache_clear()
    said = []
    assert build.library(said.append, "-O0").unmask_panel() in (16, 32)
    assert said == ["compiling the CPU kernel once (a few seconds)"]

"""The image: linted, nobody's root, and made of what is meant to be in it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.deploy.promtool import ROOT

FOLDER = ROOT / "deploy" / "container"
FILE = FOLDER / "Containerfile"
TEXT = FILE.read_text()


def test_the_linter_finds_nothing() -> None:
    program = shutil.which("hadolint") or str(Path(sys.executable).with_name("hadolint"))
    done = subprocess.run([program, FILE], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_last_stage_has_no_root_no_shell_and_no_tools() -> None:
    last = TEXT.split("\nFROM ")[-1]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE), "a number, so that Kubernetes can check it"
    assert last.index("USER") > last.rindex("RUN")
    assert 'ENTRYPOINT ["governor"]' in last
    assert "pip" not in last
    assert "uninstall --yes --quiet pip setuptools" in TEXT.split("\nFROM ")[-2]


def test_only_what_is_copied_is_sent_to_the_builder() -> None:
    copied = set()
    for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", TEXT, re.MULTILINE):
        copied |= set(sources.split())
    ignore = (FOLDER / "Containerfile.dockerignore").read_text().splitlines()
    assert "*" in ignore
    assert {line[1:] for line in ignore if line.startswith("!")} == copied
    for source in copied:
        assert (ROOT / source).exists(), source

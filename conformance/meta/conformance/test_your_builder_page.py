"""The package that docs/your-builder.md shows works, and fails, as the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = "your-builder.md"
PLUGIN = "graphparity.conformance.pytest_plugin"

pytestmark = pytest.mark.skipif(
    "GRAPHPARITY_DOCS" not in os.environ, reason="tox -e tests says where docs/ is"
)


def shown(language: str) -> dict[str, str]:
    """Title -> text of every block of that language."""
    text = Path(os.environ["GRAPHPARITY_DOCS"], PAGE).read_text()
    return dict(re.findall(rf'```{language} title="(.*?)"\n(.*?)```', text, re.DOTALL))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with the page's files alone."""
    for name, source in shown("python").items():
        (tmp_path / name).write_text(source)
    return tmp_path


def run(package: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run ``python`` there, as the page's reader would."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=package,
        capture_output=True,
        text=True,
        check=False,
    )


def test_its_own_test_and_the_suite_pass(package: Path) -> None:
    """In one session: the builder's test, and the state as subject."""
    ended = run(
        package,
        *("-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider"),
        *("--subject=my_state:MyState:1", "--max-examples=2", "test_block_counts.py"),
        *("--pyargs", "graphparity.conformance.test_replay_equals_eager"),
        "graphparity.conformance.test_recorder_refuses",
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "my_state:MyState:1" in ended.stdout
    assert re.search(r"^\d+ passed in ", ended.stdout, re.MULTILINE), ended.stdout


def test_the_broken_one_fails_as_shown(package: Path) -> None:
    """To the letter: path, key, step and snippet; and the snippet fails alike."""
    ended = run(package, "stale_tail.py")
    assert ended.returncode == 1
    message = shown("text")["python stale_tail.py"]
    assert message in ended.stderr
    lines = message.splitlines()
    snippet = "\n".join(line.strip() for line in lines[lines.index("To repeat it:") :])
    source = snippet.replace("To repeat it:", "from stale_tail import make_stale")
    again = run(package, "-c", source)
    assert message in again.stderr

"""The built distribution."""

import importlib.metadata

import pytest


def test_wheel_ships_one_top_level_name() -> None:
    """Nothing but ``graphparity`` lands in an environment, types and all, and its
    command.
    """
    try:
        files = importlib.metadata.files("graphparity")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("runs on the built wheel: tox -e tests")
    assert files
    scripts = {file.name for file in files if file.parts[0] in {"..", "bin"}}
    assert scripts == {"graphparity"}
    top_level = {file.parts[0] for file in files} - {"..", "bin"}
    assert [it for it in top_level if not it.endswith(".dist-info")] == ["graphparity"]
    shipped = {str(file) for file in files}
    for package in ("reference", "fastpath", "conformance", "command"):
        assert f"graphparity/{package}/py.typed" in shipped
    assert "graphparity/__init__.py" not in shipped

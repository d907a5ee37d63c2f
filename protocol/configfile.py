"""`cluster.toml` on the disk, as every process reads it."""

from __future__ import annotations

from pathlib import Path

from protocol.config import ClusterConfig, parse
from protocol.config_errors import ConfigError


def read_config(path: Path) -> ClusterConfig:
    """Raises `ConfigError`, which names the file."""
    try:
        return parse(read_text(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def read_text(path: Path) -> str:
    """Raises `ConfigError` when there is no such file, or it is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError("there is no such file; make one with: clusterctl init") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"it is not UTF-8 ({error}); have your editor save it as that") from error
    except IsADirectoryError as error:
        raise ConfigError("it is a folder; remove it, or name the file in it with --config") from error
    except NotADirectoryError as error:
        raise ConfigError("a part of its path is a file; remove that, or set STUDIOFLEET_HOME") from error
    except OSError as error:
        raise ConfigError(
            f"it cannot be read: {error.strerror or error}; let this user read it: chmod u+r, or chown"
        ) from error

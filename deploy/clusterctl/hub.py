"""Models of the Hugging Face hub, by its own client: what files a model has, and fetching them.

HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and what `hf auth login` stored are that client's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import httpx2
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # as it is documented
from huggingface_hub.utils.tqdm import disable_progress_bars

from clusterctl.operations import OperationError, RefusedError
from clusterctl.transfers import AGAIN

_WANTED = (
    "*.json",
    "model*.safetensors",
    "*.jinja",
    "*.txt",
    "*.model",
    "*.tiktoken",
    "*.jsonl",
)
"""What mlx-lm reads of a model; programs that come along are never run, nor fetched."""
PART = ".part"


@dataclass(frozen=True)
class HubFile:
    """One file as the hub describes it."""

    name: str
    size: int
    sha256: str | None
    """Of large files; of others the hub knows only `git`."""
    git: str | None


@dataclass(frozen=True)
class HubModel:
    """One revision of a model."""

    model_id: str
    revision: str
    files: tuple[HubFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def endpoint() -> str:
    """The address of the hub."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or str(constants.ENDPOINT)


def look_up(model_id: str, revision: str | None) -> HubModel:
    """Ask for the files of a model. Raises `RefusedError` for what cannot be had, else `OperationError`."""
    with _worded(model_id, revision):
        info = HfApi(endpoint(), library_name="studiofleet").model_info(
            model_id, revision=revision, files_metadata=True
        )
    files = []
    for each in info.siblings or ():
        path = PurePosixPath(each.rfilename)
        if path.is_absolute() or ".." in path.parts or any(part.startswith(".") for part in path.parts):
            continue
        if any(path.match(pattern) for pattern in _WANTED) and len(path.parts) == 1:
            sha256 = each.lfs.sha256 if each.lfs is not None else None
            files.append(HubFile(each.rfilename, each.size or 0, sha256, each.blob_id))
    if not any(file.name.endswith(".safetensors") for file in files):
        raise RefusedError(
            f"{model_id} has no model*.safetensors, so it is no model in MLX format; take one that is"
            " converted (for example of mlx-community), or convert it: mlx_lm.convert"
        )
    return HubModel(model_id, str(info.sha), tuple(sorted(files, key=lambda file: file.name)))


def fetch(model: HubModel, file: HubFile, folder: Path) -> None:
    """Have the file in the folder, going on with what is there of it. Raises `OperationError`.

    The client's own download of a file begins anew in each process; it is its one step that goes on.
    """
    disable_progress_bars()
    target = folder / file.name
    if target.is_file() and target.stat().st_size == file.size:
        return
    part = folder / f".{file.name}.{(file.sha256 or file.git or model.revision)[:16]}{PART}"
    url = hf_hub_url(model.model_id, file.name, revision=model.revision, endpoint=endpoint())
    with _worded(model.model_id, model.revision), part.open("ab") as growing:
        if growing.tell() > file.size:
            growing.truncate(0)
        headers = build_hf_headers(library_name="studiofleet")
        http_get(url, growing, resume_size=growing.tell(), headers=headers, expected_size=file.size)
    part.replace(target)


@contextmanager
def _worded(model_id: str, revision: str | None) -> Iterator[None]:
    """What the hub's client raises, in words."""
    try:
        yield
    except GatedRepoError as error:
        raise RefusedError(
            f"{model_id} is given only to those who accepted its terms: accept them at"
            f" {endpoint()}/{model_id}, then run: hf auth login (or set HF_TOKEN)"
        ) from error
    except RevisionNotFoundError as error:
        raise RefusedError(f"{model_id} has no revision {revision!r} at {endpoint()}") from error
    except RepositoryNotFoundError as error:
        raise RefusedError(
            f"there is no model {model_id} at {endpoint()}, or this user may not see it: check the"
            " name; for a private one run: hf auth login (or set HF_TOKEN)"
        ) from error
    except HFValidationError as error:
        raise RefusedError(f"{model_id!r} is no name of a model: write ORGANISATION/NAME") from error
    except OfflineModeIsEnabled as error:
        raise RefusedError("HF_HUB_OFFLINE forbids to ask the hub; unset it") from error
    except HfHubHTTPError as error:
        raise _of_status(model_id, error) from error
    except (httpx2.HTTPError, ConnectionError) as error:
        raise OperationError(
            f"{endpoint()} cannot be reached, or the connection broke"
            f" ({type(error).__name__}: {str(error)[:200]}); check the network, then {AGAIN}"
        ) from error


def _of_status(model_id: str, error: HfHubHTTPError) -> OperationError:
    status = error.response.status_code
    if status in (401, 403):
        return RefusedError(
            f"{endpoint()} does not let this user read {model_id} ({status}): run hf auth login, or"
            " set HF_TOKEN to a token that may"
        )
    if status == 429:
        return OperationError(
            f"{endpoint()} has had too many requests from here (429); wait some minutes, then"
            f" {AGAIN}; with a token (hf auth login) it takes more"
        )
    return OperationError(f"{endpoint()} answered {status} for {model_id}; later {AGAIN}")

"""The process that talks to the Hugging Face Hub: `python -m stretto.weights.hub.hf_client '{"repo": …}'`.

It writes `info.json` into its folder as soon as the size is known, then the files, then one line of JSON on
its output: the hashes that the server has published, and where the licence terms are.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

_NOTICE = re.compile(r"(LICEN[SC]E|NOTICE|TERMS|COPYING|USE_POLICY)[A-Za-z0-9._-]{0,40}", re.IGNORECASE)
_MAX_NOTICES = 4


def main() -> None:
    """Fetch the files that the first argument names; errors are exit code 1 and a line of JSON."""
    request = json.loads(sys.argv[1])
    try:
        result = _fetch(request["repo"], request["files"], request["revision"], Path(request["folder"]))
    except Exception as error:  # versions of the client raise different ones; the parent explains them
        kinds = [kind.__name__ for kind in type(error).__mro__]
        print(json.dumps({"kinds": kinds, "message": str(error), "errno": getattr(error, "errno", None)}))
        sys.exit(1)
    print(json.dumps(result))


def _fetch(repo: str, files: list[str], revision: str | None, folder: Path) -> dict[str, Any]:
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    # A token that the user has stored is used, as the client does by itself for the download.
    found = [get_hf_file_metadata(hf_hub_url(repo, file, revision=revision)) for file in files]
    commit = found[0].commit_hash or revision
    total = sum(metadata.size or 0 for metadata in found)
    (folder / "info.tmp").write_text(json.dumps({"size": total}))
    (folder / "info.tmp").rename(folder / "info.json")
    fetched = [
        {
            "path": hf_hub_download(repo, file, revision=commit, local_dir=folder),
            "size": metadata.size,
            "etag": metadata.etag,
        }
        for file, metadata in zip(files, found, strict=True)
    ]
    name, notices = _terms(repo, commit, folder)
    return {"files": fetched, "commit": commit, "license": name, "notices": notices}


def _terms(repo: str, revision: str | None, folder: Path) -> tuple[str, list[str]]:
    """The licence's name and its text, where the repository has them; a model without is no error."""
    from huggingface_hub import HfApi, hf_hub_download

    try:
        info = HfApi().model_info(repo, revision=revision)
        card = info.card_data
        name = (card.get("license_name") or card.get("license")) if card else None
        files = [sibling.rfilename for sibling in info.siblings or []]
        wanted = [file for file in files if _NOTICE.fullmatch(file)][:_MAX_NOTICES]
        paths = [hf_hub_download(repo, file, revision=revision, local_dir=folder) for file in wanted]
    except Exception:
        return "", []
    return str(name or ""), [str(path) for path in paths]


if __name__ == "__main__":
    main()

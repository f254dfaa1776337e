"""Write a software bill of materials of the pinned packages, as CycloneDX 1.5 in JSON.

    python tools/sbom.py --out build/sbom.json     # as `make sbom` does

It lists what `requirements.lock` pins, with the hashes of all files that may be installed, and
licences where the package is installed here. The same lock file gives the same document, but for
licences; it carries no time.
"""

import argparse
import hashlib
import json
import re
import tomllib
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def components(lock: str) -> list[dict[str, Any]]:
    """Return the packages of a lock file.

    Args:
        lock: The content of `requirements.lock`.

    Returns:
        One component of CycloneDX each, in the order of the file.
    """
    found: list[dict[str, Any]] = []
    for line in lock.splitlines():
        if match := PINNED.match(line):
            name, version = match[1].lower().replace("_", "-"), match[2]
            purl = f"pkg:pypi/{name}@{version.replace('+', '%2B')}"
            component: dict[str, Any] = {
                "type": "library",
                "bom-ref": purl if purl not in {one["bom-ref"] for one in found} else f"{purl}#2",
                "name": name,
                "version": version,
                "purl": purl,
                "hashes": [],
            }
            if text := licence_of(name):
                component["licenses"] = [{"license": {"name": text}}]
            found.append(component)
        if found:
            known = found[-1]["hashes"]
            known += [{"alg": "SHA-256", "content": digits} for digits in HASH.findall(line)]
    return found


def licence_of(name: str) -> str:
    """Return the licence that an installed package states in a line; empty where none is known."""
    try:
        facts = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return ""
    stated = str(facts.get("License-Expression") or facts.get("License") or "").strip()
    named = [
        line.rpartition(":: ")[2]
        for line in facts.get_all("Classifier") or ()
        if line.startswith("License ::")
    ]
    return stated if stated and len(stated) < 100 and "\n" not in stated else ", ".join(named)


def document(root: Path = ROOT) -> dict[str, Any]:
    """Return the bill of materials of a checkout.

    Args:
        root: The checkout.

    Returns:
        The document.
    """
    lock = (root / "requirements.lock").read_text("utf-8")
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    source = (root / "focoop" / "__init__.py").read_text("utf-8")
    version = re.search(r'__version__ = "([^"]+)"', source)
    own = {
        "type": "application",
        "bom-ref": "focoop",
        "name": project["name"],
        "version": str(project.get("version") or (version[1] if version else "0")),
    }
    parts = components(lock)
    serial = uuid.uuid5(uuid.NAMESPACE_URL, hashlib.sha256(lock.encode()).hexdigest())
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": own},
        "components": parts,
        "dependencies": [{"ref": "focoop", "dependsOn": [one["bom-ref"] for one in parts]}],
    }


def main() -> None:
    """Write the document."""
    parser = argparse.ArgumentParser(description="Write a bill of materials of the pinned packages")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "sbom.json")
    given = parser.parse_args()
    made = document()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"{given.out}: {len(made['components'])} packages")


if __name__ == "__main__":
    main()

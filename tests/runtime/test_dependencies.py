"""Packages by a requirements file and unpacked archives, as they arrive where functions run."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from holdfast.common import Configuration
from holdfast.datastream import MapFunction, StreamExecutionEnvironment
from holdfast.errors import ConfigurationError
from holdfast.runtime.host.dependencies import Dependencies

TASK = """
import pickle, sys, json
directory, packed, code = sys.argv[1:]
with open(packed, "rb") as file:
    dependencies = pickle.load(file)
dependencies.install(directory)
dependencies.install(directory)
print(json.dumps(eval(code)))
"""


def installed(dependencies: Dependencies, directory: Path, code: str) -> object:
    """The value of an expression in a process of its own, with the dependencies."""
    packed = directory / "packed"
    packed.write_bytes(pickle.dumps(dependencies))
    done = subprocess.run(
        [sys.executable, "-c", TASK, str(directory), str(packed), code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def wheel(directory: Path, name: str, version: str, code: str) -> None:
    """A wheel with one module."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    directory.mkdir(exist_ok=True)
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"]))


@pytest.fixture
def environment() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment(spark=object()).set_parallelism(1)  # type: ignore[arg-type]


def packed(environment: StreamExecutionEnvironment) -> Dependencies:
    return Dependencies.pack(environment._configuration.to_dict())


def a_package_is_installed_from_a_directory(environment, tmp_path):
    wheel(tmp_path / "cache", "holdfast_tariff", "1.5", "RATE = 7")
    (tmp_path / "requirements.txt").write_text("holdfast_tariff==1.5\n")
    environment.set_python_requirements(str(tmp_path / "requirements.txt"), str(tmp_path / "cache"))
    (tmp_path / "host").mkdir()
    assert installed(packed(environment), tmp_path / "host", "__import__('holdfast_tariff').RATE") == 7
    assert len([p for p in (tmp_path / "host").iterdir() if p.name.startswith("packages-") and p.is_dir()]) == 1


def a_package_that_cannot_be_installed_is_told(environment, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "requirements.txt").write_text("holdfast_tariff==1.5\n")
    environment.set_python_requirements(str(tmp_path / "requirements.txt"), str(tmp_path / "cache"))
    with pytest.raises(ConfigurationError, match=r"(?s)requirements cannot be installed on host .*holdfast_tariff==1.5"):
        packed(environment).install(str(tmp_path))


def an_archive_is_unpacked_in_the_working_directory(environment, tmp_path):
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("weights/first.txt", "12")
    (tmp_path / "names.txt").write_text("anna")
    with tarfile.open(tmp_path / "names.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "names.txt", "names.txt")
    environment.add_python_archive(str(tmp_path / "model.zip"), "model")
    environment.add_python_archive(str(tmp_path / "names.tar.gz"))
    (tmp_path / "host").mkdir()
    code = "[open('model/weights/first.txt').read(), open('names.tar.gz/names.txt').read()]"
    assert installed(packed(environment), tmp_path / "host", code) == ["12", "anna"]


def a_dependency_that_is_not_there_is_told_before_the_job_starts(environment, tmp_path):
    (tmp_path / "text").write_text("no archive")
    for config, told in (
        (
            {"python.requirements": f"{tmp_path}/gone"},
            "python.requirements names .*gone, which cannot be read: No such",
        ),
        ({"python.requirements": f"{tmp_path}/text#{tmp_path}/gone"}, "the directory of packages .*gone, which does not"),
        ({"python.archives": f"{tmp_path}/gone.zip#a"}, "python.archives names .*gone.zip, which cannot be read"),
        ({"python.archives": f"{tmp_path}/text"}, "python.archives names .*text, which is neither a zip nor a tar archive"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            Dependencies.pack(config)
    for path in ("a,b.zip", "a#b.zip"):
        with pytest.raises(ConfigurationError, match="no comma and no #"):
            environment.add_python_archive(path)
    assert Dependencies.pack({}) == Dependencies()


class Priced(MapFunction):
    def open(self, runtime_context):
        import holdfast_tariff  # type: ignore[import-not-found]

        self.rate = holdfast_tariff.RATE + int(Path("model/weights.txt").read_text())

    def map(self, value):
        return value * self.rate


@pytest.mark.spark
def a_function_finds_its_packages_and_archives_on_spark(tmp_path):
    wheel(tmp_path / "cache", "holdfast_tariff", "2.0", "RATE = 10")
    (tmp_path / "requirements.txt").write_text("holdfast_tariff\n")
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("weights.txt", "3")
    config = Configuration().set_string("rest.port", "0").set_string("spark.ui.enabled", "false")
    env = StreamExecutionEnvironment.get_execution_environment(config).set_parallelism(2)
    env.set_python_requirements(str(tmp_path / "requirements.txt"), str(tmp_path / "cache"))
    env.add_python_archive(str(tmp_path / "model.zip"), "model")
    with env.from_collection([1, 2, 3]).map(Priced()).execute_and_collect("priced") as results:
        assert sorted(results) == [13, 26, 39]

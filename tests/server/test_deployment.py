"""The unit and the Dockerfile in examples/server: every option, path and number in them exists."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from serving import serving
from stretto.cli import main
from stretto.server.serve import EXIT_SECONDS, NOTIFY_SECONDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "server"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def lines_of(path):
    """The lines of a file without comments, continued ones joined."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
    return [line for line in re.sub(r"\\\n\s*", "", text).splitlines() if line]


@pytest.fixture(scope="module")
def unit():
    """The unit: a list of values for each name."""
    found = {}
    for line in lines_of(FOLDER / "stretto.service"):
        if not line.startswith("["):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@pytest.fixture(scope="module")
def image():
    """The Dockerfile: a list of arguments for each instruction, in order."""
    found = {}
    for line in lines_of(FOLDER / "Dockerfile"):
        name, _, rest = line.partition(" ")
        found.setdefault(name, []).append(rest)
    return found


@pytest.fixture
def settings_of(monkeypatch):
    """What `stretto serve` would serve with, for a command line."""
    found = []
    monkeypatch.setattr("stretto.server.serve.serve", lambda settings, *told: found.append(settings))
    monkeypatch.setattr("stretto.cli.servers.pull_missing", lambda model: None)

    def settings(command):
        program, word, *options = command
        assert (Path(program).name, word) == ("stretto", "serve")
        with pytest.raises(SystemExit) as ended:
            main([word, *options])
        assert not ended.value.code
        return found.pop()

    return settings


def test_the_unit_starts_a_server_with_a_key(unit, settings_of, tmp_path):
    (tmp_path / "key").write_text("a-key\n")
    (credential,) = unit["LoadCredential"]
    (command,) = unit["ExecStart"]
    assert f"%d/{credential.split(':')[0]}" in command
    settings = settings_of(shlex.split(command.replace("%d", str(tmp_path))))
    assert settings.api_keys == ("a-key",)
    assert (settings.host, settings.port, settings.log) == ("0.0.0.0", 8080, "json")
    assert not settings.no_auth
    assert settings.memory < 1e9 * int(unit["MemoryMax"][0].removesuffix("G"))
    assert int(unit["TimeoutStopSec"][0]) > settings.grace_seconds + NOTIFY_SECONDS + EXIT_SECONDS


def test_the_unit_writes_only_where_its_models_are(unit):
    assert unit["Environment"] == [f"STRETTO_HOME={unit['ReadWritePaths'][0]}"]
    assert unit["ProtectSystem"] == ["strict"]
    assert (
        f"--home-dir {unit['ReadWritePaths'][0]} {unit['User'][0]}"
        in (FOLDER / "stretto.service").read_text()
    )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_knows_every_line_of_the_unit(tmp_path):
    def verify(text):
        unit = tmp_path / "stretto.service"
        unit.write_text(text)
        done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
        return done.stderr

    text = (FOLDER / "stretto.service").read_text().replace("/opt/stretto/bin/stretto", sys.executable)
    assert verify(text) == ""
    assert "PrivateTemp" in verify(text.replace("PrivateTmp", "PrivateTemp"))


def test_the_image_serves_with_a_key_alone(image, settings_of, monkeypatch, capsys):
    command = json.loads(image["ENTRYPOINT"][0])
    with pytest.raises(SystemExit) as refused:
        main(command[1:])
    assert refused.value.code == 2
    assert "STRETTO_API_KEY" in capsys.readouterr().err
    monkeypatch.setenv("STRETTO_API_KEY", "choose-one")
    text = (FOLDER / "Dockerfile").read_text().replace("\\\n# ", "")
    (run,) = re.findall(r"docker run (.*)", text)
    words = shlex.split(run)
    settings = settings_of([*command, *words[words.index("stretto") + 1 :]])
    assert settings.api_keys == ("choose-one",)
    assert [entry.name for entry in settings.models] == ["smollm2"]
    assert image["EXPOSE"] == [str(settings.port)]
    assert f"{settings.port}:{settings.port}" in words
    assert f"stretto-models:{image['VOLUME'][0]}" in words
    assert (
        int(words[words.index("--stop-timeout") + 1]) > settings.grace_seconds + NOTIFY_SECONDS + EXIT_SECONDS
    )


def test_the_image_tells_whether_it_is_well(image):
    (check,) = image["HEALTHCHECK"]
    program, flag, code = json.loads(check.partition(" CMD ")[2])
    assert program == "/opt/stretto/bin/python"
    (url,) = re.findall(r"http://127\.0\.0\.1:8080/\w+", code)
    with serving(host="0.0.0.0", api_keys=("a-key",)) as server:
        mine = code.replace("http://127.0.0.1:8080", f"http://127.0.0.1:{server.port}")
        assert url == "http://127.0.0.1:8080/health"
        assert subprocess.run([sys.executable, flag, mine], capture_output=True).returncode == 0
        wrong = mine.replace("/health", "/illness")
        assert subprocess.run([sys.executable, flag, wrong], capture_output=True).returncode != 0


def test_what_the_image_installs_can_be_installed(image):
    assert "pip install /source" in " ".join(image["RUN"])  # with no extra: the server is in every install
    assert any(one.startswith("uvicorn") for one in PROJECT["dependencies"])
    least = PROJECT["requires-python"].removeprefix(">=")
    for base in image["FROM"]:
        (version,) = re.findall(r"^python:(\d+\.\d+)-slim", base)
        assert [int(n) for n in version.split(".")] >= [int(n) for n in least.split(".")]
    built, copied = "/opt/stretto", image["COPY"]
    assert copied == [". /source", f"--from=build {built} {built}"]
    assert json.loads(image["ENTRYPOINT"][0])[0] == f"{built}/bin/{next(iter(PROJECT['scripts']))}"


def test_the_image_has_a_user_who_writes_only_where_its_models_are(image):
    (number,), (models,) = image["USER"], image["VOLUME"]
    assert int(number) > 0
    (added,) = (line for line in image["RUN"] if line.startswith("useradd"))
    words = shlex.split(added)
    assert words[words.index("--uid") + 1] == number
    assert words[words.index("--home-dir") + 1] == models
    name = words[words.index("&&") - 1]
    assert words[words.index("&&") + 1 :] == ["install", "-d", "-o", name, "-g", name, models]
    (settings,) = image["ENV"]
    assert f"STRETTO_HOME={models}" in settings.split()


def test_nothing_gets_into_the_image_but_what_it_is_built_from():
    lines = (FOLDER / "Dockerfile.dockerignore").read_text().split()
    assert lines[0] == "*"
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert allowed == {
        "CMakeLists.txt",
        "csrc",
        "pyproject.toml",
        "src",
        PROJECT["readme"],
        *PROJECT["license-files"],
    }
    for name in allowed:
        assert (ROOT / name).exists()
    # The last line that fits decides: what was built elsewhere comes after the folders it may lie in.
    assert {"**/__pycache__", "**/*.so"} == set(lines[len(allowed) + 1 :])

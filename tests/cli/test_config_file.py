"""The configuration file: read with care, edited without harm, and every error with its place and remedy."""

import stat
import subprocess
import sys

import pytest

from stretto.cli import config_file
from stretto.errors import InvalidRequest


@pytest.fixture(name="write")
def write_file():
    def write(text):
        config_file.path().write_text(text)

    return write


WHOLE = """\
# my settings
model = "qwen3-0.6b"  # the good one
system = "Be \\"brief\\" # really"
logs = false

[sampling]
# cool
temperature = 0.2
top_k = 20

[alias]
fast = "smollm2"
"qwen2.5" = "qwen2.5-coder-1.5b"
"""


def test_no_file_is_no_settings():
    assert config_file.read() == config_file.Config()
    assert config_file.read().keep_logs


def test_all_settings_are_read(write):
    write(WHOLE)
    assert config_file.read() == config_file.Config(
        model="qwen3-0.6b",
        system='Be "brief" # really',
        aliases={"fast": "smollm2", "qwen2.5": "qwen2.5-coder-1.5b"},
        sampling={"temperature": 0.2, "top_k": 20},
        keep_logs=False,
    )
    assert {one.key: one.line for one in config_file.read_values()} == {
        "model": 2,
        "system": 3,
        "logs": 4,
        "sampling.temperature": 8,
        "sampling.top_k": 9,
        "alias.fast": 12,
        "alias.qwen2.5": 13,
    }


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("modell = 'x'", 1, "there is no setting 'modell'; did you mean model?"),
        ("temperature = 1", 1, "did you mean sampling.temperature?"),
        ("\n[sampling]\ntemperature = -1", 3, "temperature must be a number from 0 to 100, not -1"),
        ("sampling.temperature = 1e-9", 1, "temperature must be 0 or at least 1e-06"),
        ("sampling = { top_k = 1.5 }", 1, "top_k must be an integer"),
        ("sampling = 3", 1, "there is no setting 'sampling'"),
        ("logs = 'off'", 1, "logs must be true or false"),
        ("threads = true", 1, "threads must be an integer from 1 to 1024"),
        ("model = ''", 1, "model must be a text"),
        ("alias.fast = 3", 1, "alias.fast must be a text"),
        ("[alias]\n'a b' = 'smollm2'", 2, "there is no setting 'alias.a b'"),
        ("model = [1]", 1, "model must be a text"),
    ],
)
def test_a_wrong_value_is_an_error_with_its_line_and_the_remedy(write, text, line, words):
    write(text)
    with pytest.raises(InvalidRequest) as error:
        config_file.read()
    message = str(error.value)
    assert message.startswith(f"{config_file.path()}, line {line}: ")
    assert words in message
    assert "stretto config unset " in message


@pytest.mark.parametrize("text", ["model = ", "= 3", "[sampling", "a = 1\na = 2", "\x00"])
def test_a_file_that_is_not_toml_is_an_error_with_its_line(write, text):
    write(text)
    with pytest.raises(InvalidRequest, match=r"config\.toml, line \d+: not TOML: .*remove the file"):
        config_file.read()


def test_hostile_files_are_refused(write):
    config_file.path().write_bytes(b"model = '\xff'")
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        config_file.read()
    write("#" * (config_file.MAX_BYTES + 1))
    with pytest.raises(InvalidRequest, match="more than"):
        config_file.read()
    write("a = " + "[" * 100_000)
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        config_file.read()
    config_file.path().unlink()
    config_file.path().mkdir()
    with pytest.raises(InvalidRequest, match="cannot be read"):
        config_file.read()


def test_setting_values_keeps_comments_and_everything_else(write):
    write(WHOLE)
    config_file.set_value("model", "smollm2")
    config_file.set_value("temperature", "0")
    config_file.set_value("sampling.min_p", "0.1")
    config_file.set_value("alias.large", "qwen3-8b")
    config_file.set_value("threads", "4")
    config_file.set_value("logs", "on")
    assert config_file.path().read_text() == (
        WHOLE.replace('"qwen3-0.6b"', '"smollm2"')
        .replace("temperature = 0.2", "temperature = 0")
        .replace("top_k = 20\n", "top_k = 20\nmin_p = 0.1\n")
        .replace('1.5b"\n', '1.5b"\nlarge = "qwen3-8b"\n')
        .replace("logs = false", "logs = true\nthreads = 4")
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing yet",
        'sampling.top_k = 3  # dotted\nmodel = "x"',
        '[alias]\nfast = "smollm2"',
        'system = """\nmodel = "not a key"\n"""\n[sampling]\n',
        "system = '''one line'''\n",
        "\r\nmodel = 'a'\r\n[sampling]\r\ntop_k = 5\r\n",
    ],
)
@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("model", "smollm2", "smollm2"),
        ("sampling.temperature", "0.5", 0.5),
        ("sampling.top_k", "7", 7),
        ("system", 'a\n"b" # \\ é\t\x7f', 'a\n"b" # \\ é\t\x7f'),
        ("alias.fast", "hf:a/b:Q4_K_M", "hf:a/b:Q4_K_M"),
        ("alias.qwen2.5", "smollm2", "smollm2"),
        ("logs", "off", False),
    ],
)
def test_a_value_can_be_set_and_unset_in_any_file(write, text, key, given, value):
    write(text)
    before = {one.key: one.value for one in config_file.read_values()}
    assert config_file.set_value(key, given) == value
    assert {one.key: one.value for one in config_file.read_values()} == {**before, key: value}
    config_file.unset(key)
    assert {one.key: one.value for one in config_file.read_values()} == {
        k: v for k, v in before.items() if k != key
    }


def test_a_form_that_is_not_edited_is_left_as_it_is(write):
    write("sampling = { top_k = 3 }\n")
    with pytest.raises(InvalidRequest, match=r"line 1: this form of sampling\.top_k is not edited here"):
        config_file.set_value("sampling.top_k", "4")
    with pytest.raises(InvalidRequest, match="remove it by hand"):
        config_file.unset("sampling.top_k")
    assert config_file.path().read_text() == "sampling = { top_k = 3 }\n"


@pytest.mark.parametrize("value", ['[\n"a",\n]', "{ a = [1,\n2] }"])
def test_unset_does_not_cut_a_value_of_several_lines(write, value):
    text = f'stop = {value}\nmodel = "smollm2"\n'
    write(text)
    with pytest.raises(InvalidRequest, match="remove it by hand"):
        config_file.unset("stop")
    assert config_file.path().read_text() == text


def test_a_number_beyond_all_limits_is_an_error_of_the_file(write):
    write(f"max_tokens = {'9' * 5000}\n")
    with pytest.raises(InvalidRequest, match="a number is too long"):
        config_file.read()


def test_a_file_without_an_end_is_not_read_to_it(monkeypatch):
    monkeypatch.setenv("STRETTO_CONFIG", "/dev/zero")
    with pytest.raises(InvalidRequest, match="is it the right file"):
        config_file.read()


def test_wrong_values_are_not_written():
    for key, text in (("sampling.top_p", "2"), ("threads", "many"), ("logs", "perhaps"), ("no", "1")):
        with pytest.raises(InvalidRequest):
            config_file.set_value(key, text)
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        config_file.set_value("system", "\udc80")
    assert not config_file.path().exists()


def test_unset_works_in_a_broken_file(write):
    write("modell = 'x'\nthreads = 'two'\nmodel = \n")
    for key in ("modell", "threads", "model"):
        config_file.unset(key)
    assert config_file.read() == config_file.Config()
    with pytest.raises(InvalidRequest, match="'model' is not set"):
        config_file.unset("model")


def test_the_file_is_private_and_a_link_stays_a_link(tmp_path, monkeypatch):
    config_file.set_value("model", "smollm2")
    assert stat.S_IMODE(config_file.path().stat().st_mode) == 0o600
    real = tmp_path / "dotfiles.toml"
    config_file.path().rename(real)
    real.chmod(0o644)
    config_file.path().symlink_to(real)
    config_file.set_value("threads", "2")
    assert config_file.path().is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o644
    assert config_file.read() == config_file.Config(model="smollm2", threads=2)


def test_where_the_file_is(monkeypatch, tmp_path):
    monkeypatch.delenv("STRETTO_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config_file.path() == tmp_path / "stretto" / "config.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config_file.path() == tmp_path / ".config" / "stretto" / "config.toml"
    config_file.set_value("model", "smollm2")
    assert config_file.read().model == "smollm2"


def test_importing_it_is_cheap():
    heavy = "('numpy', 'typer', 'rich')"
    code = f"import sys, stretto.cli.config_file; print(any(m in sys.modules for m in {heavy}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

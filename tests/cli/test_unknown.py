"""Options of other programs are refused with the names that they have here."""

import pytest

from stretto.cli import main


@pytest.mark.parametrize(
    ("option", "right"),
    [
        ("--num-ctx", "it is --cells here"),
        ("--n-predict", "it is --max-tokens here"),
        ("--n_threads", "it is --threads here"),
        ("--n-gpu-layers", "--device cuda"),
    ],
)
def test_an_option_of_another_program_is_answered_with_ours(capsys, option, right):
    with pytest.raises(SystemExit) as ended:
        main(["run", option, "4", "Hello"])
    assert ended.value.code == 2
    assert right in capsys.readouterr().err


def test_an_option_of_no_program_is_only_refused(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--bogus", "Hello"])
    assert capsys.readouterr().err == "error: No such option: --bogus (stretto run --help shows more)\n"

import importlib

import pytest
from torch_ucc import cli


def test_without_a_command_it_tells_which_there_are(capsys):
    assert cli.main([]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in cli.COMMANDS)


def test_an_unknown_command_is_refused(capsys):
    assert cli.main(["bnech"]) == 2
    assert "no command 'bnech'" in capsys.readouterr().err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0 and "usage:" in capsys.readouterr().out


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_has_a_module(name):
    assert callable(importlib.import_module(cli.COMMANDS[name][0]).main)

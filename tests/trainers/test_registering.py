"""layerwise.register(): with which packages, on whose request."""

import os
import runpy
import subprocess
import sys
from importlib.util import find_spec

import pytest

import layerwise
import layerwise.run as layerwise_run
from layerwise import trainers
from layerwise.catalog.registry import ENTRIES
from layerwise.errors import HyperparameterError, MissingPackageError

pytest.importorskip("torch")


def test_a_package_without_a_registry_is_named():
    with pytest.raises(HyperparameterError, match=r"`packages` must be among timm, transformers, but is 'lightning'"):
        layerwise.register("lightning")


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(trainers, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="`timm` is not installed"):
        layerwise.register("timm")
    assert layerwise.register() == {}


def test_a_package_that_cannot_be_imported_is_warned_of(monkeypatch):
    def broken(package):
        raise MissingPackageError("torchvision is not there")

    monkeypatch.setattr(trainers, "PACKAGES", ("timm",))
    monkeypatch.setattr(trainers, "find_spec", lambda name: True)
    monkeypatch.setattr(trainers, "_register_with", broken)
    with pytest.warns(UserWarning, match="nothing was registered with timm: torchvision is not there") as caught:
        assert layerwise.register() == {}
    assert [one.filename for one in caught] == [__file__]
    with pytest.raises(MissingPackageError, match="torchvision"):
        layerwise.register("timm")


@pytest.mark.parametrize(
    ("asked", "wanted"), [(None, []), ("0", []), ("1", [()]), (" timm , x,,", [("timm",), ("x",)])]
)
def test_on_request_of_the_environment(monkeypatch, asked, wanted):
    calls = []
    monkeypatch.setattr(trainers, "register", lambda *packages: calls.append(packages))
    if asked is None:
        monkeypatch.delenv("LAYERWISE_REGISTER", raising=False)
    else:
        monkeypatch.setenv("LAYERWISE_REGISTER", asked)
    trainers.register_as_asked()
    assert calls == wanted


def ran(code, **environment):
    return subprocess.run(
        [sys.executable, "-W", "ignore", *code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )


@pytest.mark.slow
def test_an_import_registers():
    if find_spec("transformers") is None:
        pytest.skip("needs transformers")
    show = "print(TrainingArguments('x', optim='layerwise_lamb').optim.value)"
    code = f"import layerwise; from transformers import TrainingArguments; {show}"
    done = ran(["-c", code], LAYERWISE_REGISTER="transformers")
    assert done.stdout.strip() == "layerwise_lamb", done.stderr


def test_an_import_says_what_cannot_be_registered():
    code = "import warnings; warnings.simplefilter('always'); import layerwise; print(layerwise.__version__)"
    done = ran(["-c", code], LAYERWISE_REGISTER="lightning,")
    assert (done.returncode, done.stdout.strip()) == (0, layerwise.__version__)
    assert "LAYERWISE_REGISTER=lightning,: `packages` must be among timm, transformers" in done.stderr


@pytest.mark.parametrize("module", [False, True])
def test_scripts_run_as_they_are_written(module, tmp_path, monkeypatch, capsys):
    calls, name = [], f"train_{module}"
    monkeypatch.setattr(trainers, "register", lambda: calls.append(()))
    (tmp_path / f"beside_{module}.py").write_text("answer = 42\n")
    script = tmp_path / f"{name}.py"
    script.write_text(
        f"import sys\nfrom beside_{module} import answer\nif __name__ == '__main__':\n    print(answer, sys.argv[1:])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["elsewhere", *sys.path])
    named = ["-m", name] if module else [str(script)]
    monkeypatch.setattr(sys, "argv", ["run.py", *named, "--opt", "layerwise_lamb"])
    runpy.run_path(layerwise_run.__file__, run_name="__main__")
    assert capsys.readouterr().out.strip() == "42 ['--opt', 'layerwise_lamb']"
    assert calls == [()]


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_a_run_of_nothing_shows_the_usage(monkeypatch, arguments):
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
    with pytest.raises(SystemExit, match=r"usage: python -m layerwise\.run"):
        runpy.run_path(layerwise_run.__file__, run_name="__main__")


def test_every_optimizer_has_a_name():
    from layerwise.trainers import classes

    assert [name.removeprefix("layerwise_") for name in classes()] == [name.lower() for name in ENTRIES]

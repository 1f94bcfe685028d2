"""The command line."""

from __future__ import annotations

from mutants.room import Room, of

CLI = Room(
    "command line",
    ("src/layerwise/cli/", "src/layerwise/__main__.py", "src/layerwise/files.py"),
    ("tests/cli",),
    (
        *of(
            "cli/__init__.py",
            ("Ctrl-C is a traceback", "    except KeyboardInterrupt:\n        return INTERRUPTED\n", ""),
            (
                "a reader that has read enough is a traceback",
                "    except BrokenPipeError:  # the reader has read enough\n        forget_output()\n        return 1\n",
                "",
            ),
            ("info needs packages", 'return list(arguments[:1]) == ["info"] and', "return False and"),
            ("the extra of another command", "EXTRAS.get(command, 'cli')", "EXTRAS.get('cli', 'cli')"),
            (
                "a full disk is a success",
                '        print(f"layerwise: cannot write the output: {problem.strerror}", file=sys.stderr)\n        forget_output()\n        return 1\n',
                '        print(f"layerwise: cannot write the output: {problem.strerror}", file=sys.stderr)\n        forget_output()\n        return 0\n',
            ),
        ),
        *of(
            "cli/app.py",
            (
                "a mistake is a success",
                '        typer.echo(f"layerwise: {problem}", err=True)\n        return WRONG\n',
                '        typer.echo(f"layerwise: {problem}", err=True)\n        return 0\n',
            ),
            ("a seed too large for the last run", "LARGEST_SEED = 2**63 - SEEDS", "LARGEST_SEED = 2**63"),
        ),
        *of(
            "cli/files.py",
            (
                "a link is replaced, and not what it leads to",
                "            replace_text(path.resolve(), text)\n",
                "            replace_text(path, text)\n",
            ),
            ("a device is replaced", "if path.exists() and not path.is_file():  #", "if False:  #"),
            (
                "a folder without permission is found at the end",
                "        if not os.access(folder, os.W_OK | os.X_OK):\n",
                "        if False:\n",
            ),
        ),
        *of(
            "files.py",
            (
                "a file half written",
                "        own.replace(path)\n",
                "        path.write_bytes(own.read_bytes())\n",
            ),
            ("what was written beside stays", "        own.unlink(missing_ok=True)\n", "        pass\n"),
            ("the mode of a file is lost", "            shutil.copymode(path, own)\n", "            pass\n"),
            ("a file that is there is overwritten", 'own.open("xb")', 'own.open("wb")'),
            ("a path's control characters are shown", "c if c.isprintable() else repr(c)[1:-1] for c", "c for c"),
        ),
        *of(
            "cli/info.py",
            (
                "a variable is named without its value",
                'return f", {variable}={value}" if value else ""',
                'return f", {variable}" if value else ""',
            ),
            (
                "an error of torch ends the report",
                '    except Exception as problem:\n        return f"cannot say ({type(problem).__name__}: {problem})"\n\n\ndef _others',
                '    except ZeroDivisionError as problem:\n        return f"cannot say ({type(problem).__name__}: {problem})"\n\n\ndef _others',
            ),
            ("one processors", "{'s' * (n != 1)}", "{'s' * (n != 0)}"),
        ),
        *of(
            "cli/presets.py",
            (
                "presets of all for an optimizer without any",
                "if name in (None, one.name, one.optimizer)]",
                "if name in (None, one.name, one.optimizer) or name in OPTIMIZERS]",
            ),
            (
                "square brackets are markup",
                "        table.add_row(*map(Text, row))  # Text",
                "        table.add_row(*row)  # Text",
            ),
        ),
        *of(
            "cli/recommend.py",
            (
                "the message speaks of arguments",
                'raise Mistake(in_flags(str(problem), options.keys() - {"optimizer", "batch"})) from None',
                "raise Mistake(str(problem)) from None",
            ),
            (
                "all digits of a rate",
                'return float(f"{value:.6g}") if isinstance(value, float) else value',
                "return value",
            ),
        ),
        *of(
            "cli/report.py",
            ("folders are shown", "return PATH.sub(_without_folders, text)", "return text"),
            (
                "names of people are shown",
                'return "~" if HOMES.search(path["folders"]) else',
                'return "~" if False else',
            ),
        ),
        *of(
            "cli/usage.py",
            ("names in their case alone", "    if value.lower() in found:\n", "    if value in found.values():\n"),
            (
                "a negative number is an option",
                'if re.match(r"-[.\\d]", one) and before not in takes_value else one',
                "if False else one",
            ),
            ("a number above the range", "if found < low or (high is not None and found > high):", "if found < low:"),
        ),
        *of(
            "cli/bench/groups.py",
            (
                "peaks of all at the same time",
                "max((cost.peak for cost in costs), default=0)",
                "sum(cost.peak for cost in costs)",
            ),
            (
                "what does not fit with the base is left out",
                "        else:\n            yield [label]\n",
                "        else:\n            pass\n",
            ),
        ),
        *of(
            "cli/bench/measure.py",
            (
                "the one that fails keeps its row",
                "            self.table.rows.pop(label, None)\n",
                "            pass\n",
            ),
            (
                "what was measured is lost by Ctrl-C",
                "        finally:  # Ctrl-C leaves what was measured so far\n            self._keep(turns)\n",
                "        finally:\n            pass\n        self._keep(turns)\n",
            ),
        ),
        *of(
            "cli/bench/memory.py",
            (
                "the limit of the control group is ignored",
                "        found.append(max(0, limit - used))\n",
                "        pass\n",
            ),
            (
                "an array in two containers counts twice",
                "sum({id(one): int(one.nbytes) for one in _arrays(held)}.values())",
                "sum(int(one.nbytes) for one in _arrays(held))",
            ),
        ),
        *of(
            "cli/bench/report.py",
            (
                "quartiles swapped",
                "figures = (timing.median, *timing.quartiles)",
                "figures = (timing.median, *timing.quartiles[::-1])",
            ),
        ),
        *of(
            "cli/demo/train.py",
            (
                "every optimizer has its own order of batches",
                "draw = torch.Generator().manual_seed(run.seed)",
                "draw = torch.Generator().manual_seed(torch.seed())",
            ),
            ("one batch too many", "            if left == 0:\n", "            if left < 0:\n"),
            (
                "the gradient of a part is of the whole",
                "loss = loss_of(model, xs, ys) / PARTS",
                "loss = loss_of(model, xs, ys)",
            ),
        ),
        *of(
            "cli/demo/result.py",
            (
                "a mean without the seeds that diverged",
                "return statistics.fmean(self.figures) if self.figures and not self.diverged else None",
                "return statistics.fmean(self.figures) if self.figures else None",
            ),
            ("infinities in JSON", "return None if isinstance(x, float) and not math.isfinite(x) else x", "return x"),
        ),
    ),
)

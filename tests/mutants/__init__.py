"""Small deliberate errors, and whether the tests notice them.

`errors/rules.txt` has errors in the mathematics. `test_mutants.py` tries them all: each oracle must notice those it is
meant to.

The other files in `errors/` have errors everywhere else, room by room (`rooms.py`). Each breaks something that the
library promises. `make mutants` makes a copy of the installed package for each, with the one file replaced, and runs
tests with that copy found first: those near to the room, and if they pass, all of `make test`. For C++ it compiles the
one file into an extension of the copy's own. A test that fails without the error as well counts for nothing; an error
that keeps tests from ending is noticed.

`killed.json` keeps what came of it, and `killed.md` is its table. What is recorded is not run again until its row
changes. `MUTANTS_ARGS` says what to run:

    --room NAME     errors of one room; may be repeated
    --only TEXT     errors whose file or words contain this
    --near          only tests near to the room
    --jobs N        so many errors at the same time
    --again         also what is recorded
    --table         write the table of what is recorded

A row whose text has moved fails a test of `make test`: give it the new text.
"""

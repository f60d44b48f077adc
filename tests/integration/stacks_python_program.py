"""Runs the named cases of python_cases.py, in every CPython from 3.8 on."""

import sys

import python_cases

for case in sys.argv[1:]:
    getattr(python_cases, case)()

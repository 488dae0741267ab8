"""The run-time type checker of the tests: beartype, where an int may be a float."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))

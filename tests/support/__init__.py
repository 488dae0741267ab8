"""What tests of several rooms share."""

from . import typechecking

__all__ = ["typechecking"]  # which jaxtyping finds as an attribute of this package

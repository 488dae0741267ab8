"""How curvatures of samples differ, and which solutions gradient descent finds.

`concentration` and `preconditioning` are chapter 10 of Even's thesis, `implicit_bias`
chapter 11.
"""

__all__ = [
    "concentration",
    "implicit_bias",
    "preconditioning",
]

"""How far curvatures of samples are apart, what that saves, and where steps lead.

`concentration` and `preconditioning` are chapter 10 of Even's thesis, `implicit_bias`
chapter 11.
"""

__all__ = [
    "concentration",
    "implicit_bias",
    "preconditioning",
]

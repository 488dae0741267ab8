"""What collaboration would bring, from pilot data: `coterie plan`.

`pilot` estimates how noisy clients' gradients are and how far apart, `prospects` says
what that means for each of them, `plans` does both for a study, and `pages` shows it.
"""

"""The first screen of a report: verdict, picture, groups and cost."""

from __future__ import annotations

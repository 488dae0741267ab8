"""The first screen of a report: verdict, picture, groups and cost, for a manager."""

from __future__ import annotations

"""Layouts that were given instead of searched, handed to `up` by a program."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest

import sailor_cloud
from factories.documents import document
from sailor_cloud.errors import RequestError


def test_a_plan_of_another_engine_is_refused_before_a_run_begins() -> None:
    with pytest.raises(RequestError, match="plan: is for fsdp; 'up' runs sailor's own engine"):
        sailor_cloud.up(replace(document(), engine="fsdp"), mock.Mock())

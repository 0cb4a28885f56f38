"""The Fleet API as the installed Flower serves it."""

from __future__ import annotations

import re

from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.superlink.main import create_app
from flwr.superlink.routers.fleet import node_auth
from flwr.superlink.routers.fleet.router import router

from thistle.deploy.gateway import BODY
from thistle.flower_compat import fleet


def test_flower_has_these_routes_and_no_other() -> None:
    served = {route.path for route in router.routes}  # type: ignore[attr-defined]
    assert served == {f"{fleet.PREFIX}{name}" for name in (*fleet.ROUTES, *fleet.REFUSED)}


def test_a_whole_superlink_serves_them_beside_what_the_gateway_keeps_out() -> None:
    paths = set(create_app().openapi()["paths"])
    let_through = {path for path in paths if re.fullmatch(f"{fleet.PREFIX}({'|'.join(fleet.ROUTES)})", path)}
    assert len(let_through) == len(fleet.ROUTES)
    assert {"/v1/control/start-run", "/v1/runtime/acquire-task", "/v1/fleet/register-node"} <= paths - let_through


def test_a_chunk_of_an_array_fits_through_the_gateway() -> None:
    assert fleet.CHUNK == FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE < int(BODY.removesuffix("m")) * 2**20


def test_a_clock_that_the_doctor_passes_is_one_that_flower_takes() -> None:
    assert fleet.AHEAD == node_auth.SYSTEM_TIME_TOLERANCE
    assert fleet.BEHIND == node_auth.TIMESTAMP_TOLERANCE

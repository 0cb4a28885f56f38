"""The words of a SuperNode are those of the installed Flower."""

from __future__ import annotations

import inspect

from flwr.supercore.error import ApiErrorCode
from flwr.supercore.retry import http_retry
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.cli import flower_supernode

from thistle.flower_compat.supernode_log import ADMITTED, REASONS, explain

CODES = (ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED, ApiErrorCode.FLEET_SUPERNODE_REGISTRATION_DISABLED)
SOURCES = [
    inspect.getsource(inspect.getmodule(part) or part)
    for part in (http_retry, start_client_internal, fleet_http_connection, flower_supernode)
]


def test_flower_says_these_things() -> None:
    assert any(f'"{ADMITTED}: %s"' in source for source in SOURCES)
    assert any('f"[code: {flower_error.code}]' in source for source in SOURCES)
    coded = {f"code: {code.value}" for code in CODES}
    others = {sign for sign, _ in REASONS} - coded - {"CERTIFICATE_VERIFY_FAILED"}  # OpenSSL's own
    assert len(others) == len(REASONS) - 3
    for sign in others:
        assert any(sign in source for source in SOURCES), sign


def test_a_key_that_is_not_registered_and_one_that_is_missing_are_told_apart() -> None:
    refused, no_key = (
        explain(f"x\nExit Code: 305 [code: {code.value}] no.\nFinished server process") for code in CODES
    )
    assert "add-node" in refused and "--certs" in no_key
    assert "clock" in explain("SuperNode terminated gracefully.")
    assert explain("something else\n") == "something else"

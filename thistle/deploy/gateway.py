"""The gateway: nginx as the one address that nodes see. It lets Flower's Fleet requests through, and nothing else.

Control (start runs, register keys) and Runtime (take tasks) share the SuperLink's port with Fleet, without any
credential: only this keeps them from the network. And a SuperNode that hears a 500 gives up for ever, which is what a
SuperLink says while its database is locked: here it becomes a 503, which nodes try again.

What strangers ask for must not fill the disk: what is refused for being too much, or for not being TLS, is not logged;
a line of the log has a bounded length; and every answer comes by `try_files`, because nginx does a plain `return`
before it looks at limits.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

from thistle.deploy.health import accepts, reachable
from thistle.deploy.programs import LOOPBACK, ServerFiles
from thistle.deploy.service import Service
from thistle.deploy.state import State
from thistle.deploy.versions import versions
from thistle.engines.flower_programs import flower_environment
from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import write_atomically
from thistle.flower_compat import fleet

BODY = "6m"
"""More than a chunk of Flower's: `fleet.CHUNK`."""
CONNECTIONS, REQUESTS = 64, 200
"""Limits per address: connections, and requests per second. Beyond them: 503, which nodes retry."""

CONFIGURATION = """\
# Written by `thistle deploy server`; changes here are lost.
daemon off;
pid {folder}/nginx.pid;
error_log stderr warn;
worker_processes 2;
events {{ worker_connections 4096; }}
http {{
  map $status $kept {{ 400 0; 503 0; default 1; }}
  map $request $begins {{ "~^(?<first>.{{1,120}})" $first; default ""; }}
  log_format short '$remote_addr - - [$time_local] "$begins" $status $body_bytes_sent';
  access_log {folder}/access.log short if=$kept;
  server_tokens off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  limit_conn_zone $binary_remote_addr zone=connections:10m;
  limit_req_zone $binary_remote_addr zone=requests:10m rate={requests}r/s;
  limit_conn_status 503;
  limit_req_status 503;
  limit_conn_log_level info;
  limit_req_log_level info;
  upstream superlink {{ server {loopback}:{port}; keepalive 32; }}
  server {{
    listen {listen} ssl;
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    ssl_protocols TLSv1.2 TLSv1.3;
    root /nowhere;
    client_max_body_size {body};
    client_body_timeout 60s;
    proxy_request_buffering off;
    proxy_buffering off;
    limit_conn connections {connections};
    limit_req zone=requests burst={burst} nodelay;
    location ~ ^{prefix}({fleet})$ {{
      proxy_pass https://superlink;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_ssl_trusted_certificate {ca};
      proxy_ssl_verify on;
      proxy_ssl_name localhost;
      proxy_ssl_server_name on;
      proxy_intercept_errors on;
      error_page 500 =503 @again;
    }}
    location @again {{ return 503; }}
    location = /thistle {{ try_files /nothing @versions; }}
    location @versions {{ default_type application/json; return 200 '{versions}'; }}
    location / {{ try_files /nothing =404; }}
  }}
}}
"""


def find_nginx() -> str:
    """Also where an ordinary user's path does not lead; empty where it is not installed."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin") or ""


def gateway(state: State, port: int, files: ServerFiles, listen: str, link: Service) -> Service:
    """nginx in the foreground, in its own folder."""
    nginx = find_nginx()
    if not nginx:
        raise UserError(
            "nginx, the gateway, is not installed: install it (Debian: apt install nginx), or use --no-gateway"
        )
    folder = state.gateway
    folder.mkdir(exist_ok=True)
    text = CONFIGURATION.format(
        folder=_plain(folder),
        loopback=LOOPBACK,
        port=port,
        listen=listen,
        certificate=_plain(files.certificate),
        key=_plain(files.key),
        ca=_plain(files.ca),
        prefix=fleet.PREFIX,
        fleet="|".join(fleet.ROUTES),
        body=BODY,
        connections=CONNECTIONS,
        requests=REQUESTS,
        burst=2 * REQUESTS,
        versions=json.dumps(versions()),
    )
    configuration = folder / "nginx.conf"
    write_atomically(configuration, text.encode())
    return Service(
        name="gateway",
        command=[nginx, "-e", "stderr", "-p", str(folder), "-c", str(configuration)],
        environment=flower_environment(state.home),
        log=state.logs / "gateway.log",
        folder=folder,
        probe=partial(accepts, reachable(listen)),
        after=link,
    )


def _plain(path: Path) -> str:
    if any(character in str(path) for character in " ;{}\"'$\\"):
        raise UserError(f"{path}: nginx needs a path without spaces, quotes and brackets")
    return str(path)

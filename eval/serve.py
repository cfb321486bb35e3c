"""Serve a judge over HTTP: scores of any number of responses to a prompt with images.

python eval/serve.py runs/mine/best                                          # http://127.0.0.1:8000
python eval/serve.py runs/mine/best --host 0.0.0.0 --api-key-file key.txt --media-root /data/images

The judge is a checkpoint folder, or a YAML file with the `type` scalar, critic or generative.
Images are data URIs. With --media-root they may also be paths below that folder. Web addresses are
never fetched. These routes take requests:

/v1/rewards   groups of responses to a prompt: scores, order, margin, the tokens that were computed
  curl localhost:8000/v1/rewards -d '{"groups": [{"messages": "What is 2 + 2?", "responses": ["4", "5"], "images": []}]}'
/classify     vLLM: a conversation that ends with the answer (or `input`: the same as text of the
              chat template)
  curl localhost:8000/classify -d '{"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}'
/rerank       vLLM, Jina, Cohere: the prompt is the query, the responses are the documents
  curl localhost:8000/rerank -d '{"query": "What is 2 + 2?", "documents": ["4", "5"]}'
/get_reward   OpenRLHF: prompt and response in one text; images only in a label, as
              {"images": ["data:…"]}
  curl localhost:8000/get_reward -d '{"query": ["What is 2 + 2? 4"], "prompts": ["What is 2 + 2?"], "labels": [""]}'
/score        UniRL: generated images, each with a number from the reward `reward_model`
  curl localhost:8000/score -d '{"requests": [{"history": [{"text": "A cat", "image_b64": "iVBORw0K…"}],
                                                "required_rewards": ["reward_model"]}]}'

Open the address that the command prints in a browser to try the judge: drop photos, write a
question and answers, see the scores, and copy the request as curl or Python. /docs and
/openapi.json describe the routes. These pages, and /health and /ready for load balancers, need no
key. /metrics is for Prometheus. /v1/models holds the checkpoint's fingerprint. A judge that compares
two responses at a time ranks the responses of a group by a tournament. At SIGTERM the server
answers the requests that it has accepted, refuses new ones, and ends. docker/serve.yaml serves from
several GPUs.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pydantic import ValidationError

from mmrm.data.config.validation import format_validation_error
from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.option_numbers import LIMIT, PORT
from mmrm.data.errors import UserError
from mmrm.data.package import recipe_path
from mmrm.data.regular_files import read_text
from mmrm.eval.cli import add_model_options, rank_device
from mmrm.eval.serving.request_limits import RequestLimits

LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")
"""Addresses that only programs on this machine reach."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a judge over HTTP until a signal ends the server.

    Errors that a user can correct end the command with a message and no traceback.
    """
    options = parse(arguments)
    with exit_on_user_error():
        key = api_key(options.api_key_file)
        if options.media_root is not None and not options.media_root.is_dir():
            raise UserError(f"--media-root {options.media_root} is no folder.")
        if not options.judge.exists():
            raise UserError(
                f"{options.judge}: there is no such folder or file. Give a checkpoint folder, or a "
                "judge's YAML file."
            )
        serve(options, limits_of(options), key)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line. A wrong command line ends the process with status 2."""
    parser = CommandParser("eval/serve.py", __doc__)
    parser.add_argument(
        "judge",
        type=recipe_path,
        metavar="JUDGE",
        help="A checkpoint folder, or the YAML file of a judge.",
    )
    parser.add_argument(
        "--name",
        help="The name of the model in requests. The default is JUDGE as it is written here.",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="The address to listen at. The default is %(default)s, which only this machine "
        "reaches.",
    )
    parser.add_argument(
        "--port",
        type=PORT,
        default=8000,
        help="The port to listen at. The default is %(default)s; 0 takes a free port.",
    )
    parser.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="A file with a key, which every request must contain as a bearer token. Pages and health checks need none.",
    )
    parser.add_argument(
        "--media-root",
        type=Path,
        metavar="FOLDER",
        help="The folder of images that requests may name by a path below it. The default is none.",
    )
    for name, field in RequestLimits.model_fields.items():
        parser.add_argument(
            f"--max-{name}",
            type=LIMIT,
            metavar="N",
            default=field.default,
            help=f"{field.description}; default: %(default)s",
        )
    add_model_options(parser)
    return parser.parse_args(arguments)


def limits_of(options: argparse.Namespace) -> RequestLimits:
    """Return the limits on requests that the options `--max-…` set.

    Raises:
        UserError: If a limit has a value that is not allowed, or contradicts another limit.
    """
    values: dict[str, int] = {}
    for name in RequestLimits.model_fields:
        values[name] = vars(options)[f"max_{name}"]  # such as --max-groups
    try:
        limits = RequestLimits(**values)
    except ValidationError as error:
        raise UserError(f"--max-…: {format_validation_error(error)}") from error
    if limits.groups > limits.queue:
        raise UserError(
            f"--max-groups {limits.groups} is more than --max-queue {limits.queue}, so that a "
            "request could never wait."
        )
    return limits


def api_key(file: Path | None) -> str | None:
    """Return the key that requests must contain, or None if no file is given.

    Args:
        file: The file of `--api-key-file`, which holds the key.

    Raises:
        UserError: If the file has no key, or a key that an HTTP header cannot hold.
    """
    if file is None:
        return None
    key = read_text(file, errors="replace").strip()
    has_only_visible_ascii = key.isascii() and key.isprintable() and " " not in key
    if not key or not has_only_visible_ascii:
        raise UserError(
            f"--api-key-file {file}: required is one line of visible ASCII characters without "
            "blanks."
        )
    return key


def serve(options: argparse.Namespace, limits: RequestLimits, key: str | None) -> None:
    """Listen for requests, load the judge, and answer requests until a signal ends the server.

    Requests that arrive before the judge is loaded are refused.

    Args:
        options: The parsed command line.
        limits: The limits on the size and the number of requests.
        key: The key that requests must contain; None accepts requests without a key.

    Raises:
        OSError: If the port is taken.
        UserError: If the judge cannot be loaded, or a package is missing.
    """
    try:
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UserError(
            "FastAPI and uvicorn, which serve, are not installed: pip install -e .[serve]"
        ) from error
    with rank_device() as device:
        from mmrm.eval.judges.checkpoint import Runtime
        from mmrm.eval.serving.app import Server
        from mmrm.eval.serving.service import Service, load_served

        name = options.name or str(options.judge)
        runtime = Runtime(device, options.token_budget)
        # The host may be an IPv4 or an IPv6 address, or a name.
        address_family = socket.getaddrinfo(options.host, None)[0][0]
        listening_socket = socket.create_server((options.host, options.port), family=address_family)
        # With --port 0 the system has chosen a free port.
        port = listening_socket.getsockname()[1]
        logging.basicConfig(format="%(asctime)s %(message)s")
        logging.getLogger("reward_server").setLevel(logging.INFO)
        # The service loads the judge in its own thread once the server listens.
        load_judge = partial(load_served, options.judge, name, runtime)
        service = Service(load_judge, limits, options.media_root, key)
        if key is None and options.host not in LOCAL_HOSTS:
            print(
                f"warning: everybody who reaches {options.host} may ask; --api-key-file asks for a "
                "key",
                file=sys.stderr,
            )
        address = browser_address(options.host, port)
        print(
            f"serving {name} at {address}; open it in a browser to try it; "
            "/ready says when it is loaded",
            flush=True,
        )
        Server(service).run([listening_socket])
        if service.out_of_time.is_set():
            # The model may still compute a row of an abandoned request. No thread can be
            # interrupted, and the interpreter would wait for it.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        if service.failed is not None:
            raise service.failed


def browser_address(host: str, port: int) -> str:
    """Return the address at which a browser on this machine finds the server.

    Args:
        host: The host that the server listens at. At 0.0.0.0 and :: it listens at all addresses of
            this machine, and browsers do not open these two.
        port: The port that the server listens at.
    """
    if host == "0.0.0.0":
        host = "127.0.0.1"
    if host == "::":
        host = "::1"
    if ":" in host:
        host = f"[{host}]"  # an address of IPv6
    return f"http://{host}:{port}"


if __name__ == "__main__":
    main()

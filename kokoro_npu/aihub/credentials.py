"""Where the token comes from. The client's own reader would put the file's lines into its errors."""

import configparser
import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from kokoro_npu.errors import KokoroNpuError

INI_VARIABLE = "QAIHUB_CLIENT_INI"
_DEFAULT = "~/.qai_hub/client.ini"
_HOW = "get one at https://workbench.aihub.qualcomm.com (Account), then: qai-hub configure --api_token <token>"
_SHORTEST = 8
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Credentials:
    """Address of the service and the token, which no ``repr`` shows.

    Attributes:
        path: the file they come from.
        api_url: address of the service.
        web_url: address of its pages, for links to jobs.
        token: the secret.
    """

    path: Path
    api_url: str
    web_url: str
    token: str = field(repr=False)


def ini_path() -> Path:
    """The client's configuration file: ``QAIHUB_CLIENT_INI``, else ``~/.qai_hub/client.ini``."""
    return Path(os.path.expanduser(os.environ.get(INI_VARIABLE) or _DEFAULT))


def read_credentials() -> Credentials:
    """Read and check the configuration file.

    Raises:
        KokoroNpuError: no file, a file that cannot be read, a missing or empty entry, an address that would send the
            token in the clear. The message never quotes the file.
    """
    path = ini_path()
    # No interpolation: a token may hold a percent sign.
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
        problem = ""
    except FileNotFoundError:
        problem = f"does not exist: AI Hub needs a token; {_HOW}"
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot be read ({type(error).__name__})"
    except configparser.Error as error:
        line = getattr(error, "lineno", None) or next((n for n, _ in getattr(error, "errors", [])), None)
        problem = "is no valid ini file" + (f" (line {line})" if line else "") + f"; write it anew: {_HOW}"
    if problem:  # outside of the except block: the error it handles may quote the token
        raise KokoroNpuError(f"{path} {problem}")
    if not parser.has_section("api"):
        raise KokoroNpuError(f"{path} has no section [api]; write it anew: {_HOW}")
    values = {key: parser.get("api", key, fallback="").strip() for key in ("api_token", "api_url", "web_url")}
    for key in ("api_token", "api_url"):
        if not values[key]:
            raise KokoroNpuError(f"{path}: {key} in [api] is missing or empty; {_HOW}")
    token, api_url = values["api_token"], values["api_url"]
    if len(token) < _SHORTEST or not token.isprintable() or not token.isascii() or " " in token or "<" in token:
        raise KokoroNpuError(f"{path}: api_token does not look like a token; {_HOW}")
    try:
        address = urlsplit(api_url)
        host = address.hostname
    except ValueError:
        host = None
    if not host or address.scheme not in ("http", "https"):
        raise KokoroNpuError(f"{path}: api_url is no http address")
    if address.scheme == "http" and host not in _LOOPBACK:
        raise KokoroNpuError(f"{path}: api_url is not https, so the token would travel in the clear")
    return Credentials(path, api_url, values["web_url"] or api_url, token)

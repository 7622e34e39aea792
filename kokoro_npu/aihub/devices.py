"""Which devices are meant, checked against the service's list before anything is uploaded."""

from collections.abc import Sequence
from dataclasses import dataclass

from kokoro_npu.aihub.service import Service
from kokoro_npu.errors import KokoroNpuError, did_you_mean


@dataclass(frozen=True)
class Device:
    """A device of the service.

    Attributes:
        name: as the service lists it.
        soc_model: Qualcomm's number of its chip, None where the service does not say.
        htp_arch: its Hexagon version, None where the service does not say.
    """

    name: str
    soc_model: int | None
    htp_arch: int | None

    @property
    def slug(self) -> str:
        """The name as a file name. A plus is spelt out: the S24+ is another phone than the S24."""
        words = "".join(c if c.isalnum() else " " for c in self.name.lower().replace("+", " plus "))
        return "-".join(words.split())


def resolve(service: Service, wanted: Sequence[str]) -> list[Device]:
    """The devices of these names, in this order.

    The first call of a run: a wrong token and a service out of reach show here, before any upload.

    Raises:
        KokoroNpuError: a name that the service does not list, with the closest that it does.
    """
    listed = service.call(
        "list of devices", lambda client: client.get_devices(), patience=service.settings.connect_seconds
    )
    # Of several entries of a name the last counts, the one with the newest OS, as for the service itself.
    attributes = {device.name: list(device.attributes) for device in listed}
    for name in wanted:
        if name not in attributes:
            raise KokoroNpuError(f"target.device: AI Hub has no device {name!r}; {did_you_mean(name, attributes)}")
    return [Device(n, _number(attributes[n], "soc-model:"), _number(attributes[n], "hexagon:v")) for n in wanted]


def _number(attributes: Sequence[str], prefix: str) -> int | None:
    values = [a.removeprefix(prefix) for a in attributes if a.startswith(prefix)]
    return int(values[0]) if len(values) == 1 and values[0].isdecimal() else None

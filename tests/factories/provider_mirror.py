"""A local mirror of Terraform providers, wherever this machine has one."""

from __future__ import annotations

from pathlib import Path


def mirror(owner: str, name: str) -> Path | None:
    """Return the folder of a mirror that holds a provider: a usual one, or one near the root of the file system."""
    places = [Path(place) for place in ("/usr/local/share/terraform/plugins", "/usr/share/terraform/plugins")]
    places += [Path.home() / ".terraform.d" / "plugins", *Path("/").glob("*"), *Path("/").glob("*/*")]
    for place in places:
        try:
            if (place / "registry.terraform.io" / owner / name).is_dir():
                return place
        except OSError:
            continue
    return None

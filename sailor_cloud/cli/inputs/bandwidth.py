"""`sailor-cloud bandwidth`: transfer times between two zones, and their cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.terminal.options import DataFolder, json_option, look_up_argument

if TYPE_CHECKING:
    from rich.console import Console

    from sailor_cloud.catalog import Catalog
    from sailor_cloud.network import EgressPrice, Link, Network, Place

SIZES = (1_000_000, 16_000_000, 256_000_000)
SHOWN_SIZES = (SIZES[0], SIZES[-1])
# Below this many columns only the longest transfer is shown.
NARROW = 76


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    src: Place
    dst: Place
    pairs: int
    link: Link


@click.command(short_help="Show bandwidth and traffic prices between zones.")
@click.argument("src", metavar="SRC")
@click.argument("dst", metavar="DST")
@click.option("--accelerator", metavar="NAME", help="Accelerator on both sides; default: all that both zones have.")
@click.option("--instance-type", metavar="TYPE", help="Instance type on both sides; default: the largest.")
@click.option(
    "--pairs", type=click.IntRange(min=1), help="Devices that send simultaneously; default: all of the instance."
)
@click.option(
    "--network", "network_dir", type=DataFolder(), metavar="DIR", help="Read another folder of bandwidth profiles."
)
@click.option("--pricing", type=DataFolder(), metavar="DIR", help="Read another folder of prices.")
@json_option
def bandwidth(
    src: str,
    dst: str,
    accelerator: str | None,
    instance_type: str | None,
    pairs: int | None,
    network_dir: Path | None,
    pricing: Path | None,
    as_json: bool,
) -> None:
    """Show transfer times and the price of traffic between two nodes, one in zone SRC and one in zone DST.

    Figures that were not measured are estimates, shown with their error.

    \b
    sailor-cloud bandwidth us-central1-a us-west1-b
    sailor-cloud bandwidth us-central1-a us-central1-b --accelerator V100-16 --pairs 4
    """
    from sailor_cloud import catalog as catalogs
    from sailor_cloud import network as networks
    from sailor_cloud.report.console import result_console

    catalog = catalogs.load(pricing=pricing)
    network = networks.load(profiles=network_dir, pricing=pricing)
    rows = _rows(catalog, network, src, dst, accelerator, instance_type, pairs)
    egress = network.egress(src, dst)
    if as_json:
        echo(_json(rows, egress))
    else:
        _print(rows, egress, result_console())


def _rows(
    catalog: Catalog,
    network: Network,
    src: str,
    dst: str,
    accelerator: str | None,
    instance_type: str | None,
    pairs: int | None,
) -> list[Row]:
    from sailor_cloud.errors import RequestError
    from sailor_cloud.network import Place

    for zone in (src, dst):
        look_up_argument(catalog.zone, zone)
    sides = [_largest(catalog, zone, accelerator, instance_type) for zone in (src, dst)]
    rows = []
    for name in sorted(sides[0].keys() & sides[1].keys()):
        ends = [
            Place(zone=zone, node=None, accelerator=name, instance_type=side[name][0])
            for zone, side in zip((src, dst), sides, strict=True)
        ]
        count = pairs or min(side[name][1] for side in sides)
        rows.append(Row(src=ends[0], dst=ends[1], pairs=count, link=network.link(ends[0], ends[1], pairs=count)))
    if not rows:
        wanted = " on ".join(name for name in (accelerator, instance_type) if name) or "any accelerator"
        raise RequestError(
            f"{src} and {dst} do not both offer {wanted}; see 'sailor-cloud prices list --zone {src} --zone {dst}'"
        )
    return rows


def _largest(
    catalog: Catalog, zone: str, accelerator: str | None, instance_type: str | None
) -> dict[str, tuple[str, int]]:
    """Return the instance type with most devices in a zone, and their number, by accelerator."""
    found: dict[str, tuple[str, int]] = {}
    for offer in catalog.offers(
        zones=[zone],
        accelerators=None if accelerator is None else [catalog.accelerator(accelerator).name],
        instance_types=None if instance_type is None else [instance_type],
    ):
        if offer.accelerator_count > found.get(offer.accelerator, ("", 0))[1]:
            found[offer.accelerator] = (offer.instance_type, offer.accelerator_count)
    return found


def _print(rows: Sequence[Row], egress: Sequence[EgressPrice], console: Console) -> None:
    from sailor_cloud.report.tables import plain_table, print_report
    from sailor_cloud.report.text import share, usd

    sizes = SHOWN_SIZES if console.width >= NARROW else SHOWN_SIZES[-1:]
    headings = [f"{size // 1_000_000} MB" for size in sizes]
    table = plain_table(
        "accelerator",
        "instance types",
        "pairs",
        *headings,
        "GB/s",
        "",
        "error",
        numbers=("pairs", *headings, "GB/s", "error"),
        gap=2 if console.width >= NARROW else 1,
    )
    for row in rows:
        types = dict.fromkeys((row.src.instance_type, row.dst.instance_type))
        link = row.link
        table.add_row(
            row.src.accelerator,
            ", ".join(types),
            str(row.pairs),
            *(_milliseconds(link.transfer_s(float(size))) for size in sizes),
            f"{link.bandwidth_bytes_per_s / 1e9:.3g}",
            "measured" if link.measured else "estimated, not measured",
            share(link.error),
        )
    print_report(table, console)
    console.print(f"shortest round trip {_milliseconds(min(row.link.rtt_s for row in rows))}")
    for source, day in sorted({(row.link.source, row.link.as_of) for row in rows}):
        console.print(f"bandwidth from {source}, {day}", style="dim")
    for price in egress:
        console.print(
            f"{price.scope}: {usd(price.usd_per_gb)} USD/GB paid by the {price.payer} in {price.payer_zone} "
            f"({price.source}, {price.as_of_from}, {price.confidence})",
            soft_wrap=True,
        )


def _milliseconds(duration_s: float) -> str:
    return f"{duration_s * 1e3:.3g} ms" if duration_s < 1 else f"{duration_s:.3g} s"


def _json(rows: Sequence[Row], egress: Sequence[EgressPrice]) -> str:
    from sailor_cloud.cli.inputs.price_tables import as_json

    links: list[dict[str, Any]] = [
        {
            "src": asdict(row.src),
            "dst": asdict(row.dst),
            "pairs": row.pairs,
            "bandwidth_bytes_per_s": row.link.bandwidth_bytes_per_s,
            "transfer_s": {str(size): row.link.transfer_s(float(size)) for size in SIZES},
            "link": asdict(row.link),
        }
        for row in rows
    ]
    return as_json({"links": links, "egress": [asdict(price) for price in egress]})

"""What can be bought, where, at which price, with the source and the date of every figure."""

from sailor_cloud.catalog.catalog import Catalog
from sailor_cloud.catalog.interruptions import Interruptions
from sailor_cloud.catalog.regions import Region
from sailor_cloud.catalog.services import BOOT_DISKS, Service, ServicePrice, Services
from sailor_cloud.catalog.storage import load, load_services
from sailor_cloud.catalog.tables import Source

__all__ = [
    "BOOT_DISKS",
    "Catalog",
    "Interruptions",
    "Region",
    "Service",
    "ServicePrice",
    "Services",
    "Source",
    "load",
    "load_services",
]

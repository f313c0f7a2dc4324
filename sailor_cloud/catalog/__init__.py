"""What can be bought, where and at which price; every figure has a source and a date."""

from sailor_cloud.catalog.catalog import Catalog
from sailor_cloud.catalog.files.tables import Source
from sailor_cloud.catalog.prices.interruptions import Interruptions
from sailor_cloud.catalog.prices.services import BOOT_DISKS, Service, ServicePrice, Services
from sailor_cloud.catalog.storage import load, load_services
from sailor_cloud.model.regions import Region

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

"""Other tools' formats: reads the data files of Sailor's artifact into ours, and writes plans in its form."""

from sailor_cloud.interchange.sailor_export import export_plan
from sailor_cloud.interchange.sailor_import import Imported, import_artifact

__all__ = ["Imported", "export_plan", "import_artifact"]

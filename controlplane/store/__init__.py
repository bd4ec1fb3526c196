"""The store: tables, sessions, migrations, read models, retention."""

from controlplane.store.migrate import current_revision, require_current_schema, upgrade
from controlplane.store.session import Store

__all__ = ["Store", "current_revision", "require_current_schema", "upgrade"]

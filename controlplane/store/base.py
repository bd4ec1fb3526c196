"""What every table shares: key types, constraint names, how Python types become columns."""

from __future__ import annotations

import datetime as dt
from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, Integer, MetaData
from sqlalchemy.orm import DeclarativeBase

from controlplane.store.columns import UtcMicros

# SQLite only autoincrements INTEGER keys; Postgres wants BIGINT for append-only history.
RowId = BigInteger().with_variant(Integer, "sqlite")


# Every constraint has a name, so that a later migration can drop it on either database.
NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_name)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        dt.datetime: UtcMicros,
        int: BigInteger,
        dict[str, Any]: JSON,
        list[Any]: JSON,
    }

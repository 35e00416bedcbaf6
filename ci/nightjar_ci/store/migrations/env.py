"""Alembic's environment for migrations: the connection of `engine.migrate`, inside its transaction."""

from __future__ import annotations

from alembic import context

from nightjar_ci.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()

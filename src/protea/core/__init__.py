"""The science: pure functions from arrays and Arrow tables to Arrow tables. No database, no queue, no printing."""

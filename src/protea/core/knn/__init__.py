"""Nearest donors of a query, per aspect (contract section 5). `exact` is the reference and the default."""

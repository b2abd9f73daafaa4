"""GO evidence codes: their order, groups and presets (contract sections 1 and 6)."""

CODES: tuple[str, ...] = tuple(
    "EXP IDA IPI IMP IGI IEP HTP HDA HMP HGI HEP TAS IC IBA IBD IKR IRD ISS ISO ISA ISM IGC RCA NAS IEA".split()
)
"""The 25 codes in the order that decides which row of a donor is its best."""

ND = len(CODES)
"""The stored code of ND ("no biological data available"): nothing is known, and nothing is used."""

EXPERIMENTAL: frozenset[str] = frozenset(CODES[:11])
ELECTRONIC: frozenset[str] = frozenset({"IEA"})
CAFA: frozenset[str] = EXPERIMENTAL | {"TAS", "IC"}


def group(code: str) -> str:
    """`experimental`, `electronic`, or `curated` (non-experimental) of one of the 25 codes."""
    if code in EXPERIMENTAL:
        return "experimental"
    return "electronic" if code in ELECTRONIC else "curated"

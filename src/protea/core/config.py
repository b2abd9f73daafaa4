"""The settings of an export (contract section 0): one strict model, read from TOML or keyword arguments.

Called by the command line and the Python API; its resolved form goes into the manifest and the stage keys.
"""

import difflib
import itertools
import re
import tomllib
import types
from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from ..errors import ConfigError, InputError, NotFoundError
from . import evidence

SAFE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._+-]{0,99}$"


MAX_FILE = 100_000
"""Bytes of a file of settings."""
MAX_DOTS = 500
"""In a line. Tables within tables (`a.a.a = 1`) take tomllib quadratic time: half a minute for MAX_FILE."""


def _version(value: object) -> int | str:
    """A release label: an integer or an ISO date (given as integer, string or date)."""
    if isinstance(value, bool | datetime):
        raise ValueError("a version is an integer or an ISO date")
    if isinstance(value, int) and value >= 0:
        return value
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        text = value.strip()
        if text.isascii() and text.isdigit():
            return int(text)
        try:
            if re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
                return date.fromisoformat(text).isoformat()
        except ValueError:
            pass
    raise ValueError("a version is an integer or an ISO date such as 2020-03-03")


def _codes(value: object) -> object:
    """A list of evidence codes, in the order of the contract, checked and without repeats."""
    if isinstance(value, list | tuple):
        unknown = [v for v in value if v not in evidence.CODES]
        if unknown or not value:
            raise ValueError(f"evidence codes are {' '.join(evidence.CODES)}; got {_shown(list(value))}")
        return [c for c in evidence.CODES if c in value]
    return value


Version = Annotated[int | str, BeforeValidator(_version)]
Codes = Annotated[list[str], BeforeValidator(_codes)]

TABLES = ("taxonomy", "term_vectors", "interpro", "external_scores", "information_accretion")
"""Settings that name an optional input."""

REQUIRES = {"compute_taxonomy": "taxonomy", "interpro_candidates": "interpro"}
"""A switch, and the input that it cannot do without."""


class ExportConfig(BaseModel):
    """Every setting of `export_research_dataset`, with the contract's names and defaults."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: str = Field(pattern=SAFE_NAME)
    embedding_config: str
    annotation_source: str
    train_versions: list[Version] = Field(min_length=2)
    test_versions: list[Version] = Field(min_length=1)
    ontology: str | None = None
    proteins: str | None = None
    k: int = Field(default=5, ge=1, le=10_000)
    metric: Literal["cosine", "l2"] = "cosine"
    search_backend: Literal["exact", "numpy", "faiss", "torch"] = "exact"
    distance_threshold: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    donor_evidence: Literal["all", "experimental", "non_electronic"] | Codes = "all"
    experimental_codes: Literal["experimental", "cafa"] | Codes = "experimental"
    label_mode: Literal["propagated", "direct"] = "propagated"
    keep_known: bool = False
    exclude_binding_only: bool = True
    exclude_identical_sequences: bool = False
    expand_votes_to_ancestors: bool = False
    use_embedding_pca: bool = False
    compute_alignments: bool = False
    compute_taxonomy: bool = False
    compute_self_prior: bool = False
    compute_association: bool = False
    interpro_candidates: bool = False
    taxonomy: str | None = None
    term_vectors: str | None = None
    interpro: str | None = None
    external_scores: str | None = None
    information_accretion: str | None = None
    max_alignment_cells: int | None = Field(default=None, ge=1)

    @field_validator("search_backend")
    @classmethod
    def _backend(cls, value: str) -> str:
        if value in ("faiss", "torch"):
            raise ValueError(f"{value} is not available in this version; use exact")
        return "exact"

    @model_validator(mode="after")
    def _check(self) -> "ExportConfig":
        versions = [*self.train_versions, *self.test_versions]
        if len({type(v) for v in versions}) > 1:
            raise ValueError(f"versions are all integers or all dates, not mixed: {_shown(versions)}")
        for which, part in (("train_versions", self.train_versions), ("test_versions", self.test_versions)):
            if any(not a < b for a, b in itertools.pairwise(part)):  # type: ignore[operator]
                raise ValueError(f"{which} must ascend without repeats: {_shown(part)}")
        if not self.train_versions[-1] < self.test_versions[0]:  # type: ignore[operator]
            raise ValueError(
                f"every test version must come after the last train version {_shown(self.train_versions[-1])}: "
                f"{_shown(self.test_versions)}"
            )
        for switch, table in REQUIRES.items():
            if getattr(self, switch) and getattr(self, table) is None:
                raise ValueError(f"{switch} needs {table}: the name of a loaded one")
        return self

    @property
    def experimental(self) -> frozenset[str]:
        """The codes that count as experimental in this export."""
        if isinstance(self.experimental_codes, list):
            return frozenset(self.experimental_codes)
        return evidence.CAFA if self.experimental_codes == "cafa" else evidence.EXPERIMENTAL

    @property
    def donor_codes(self) -> frozenset[str]:
        """The codes whose rows a donor may give."""
        if isinstance(self.donor_evidence, list):
            return frozenset(self.donor_evidence)
        if self.donor_evidence == "experimental":
            return self.experimental
        return frozenset(evidence.CODES) - (evidence.ELECTRONIC if self.donor_evidence == "non_electronic" else set())

    @property
    def versions(self) -> list[int | str]:
        return [*self.train_versions, *self.test_versions]


def parse(settings: Mapping[str, Any], where: str = "settings") -> ExportConfig:
    """Check `settings`; a ConfigError names every key that is wrong, and the nearest right one."""
    try:
        return ExportConfig.model_validate(dict(settings))
    except ValidationError as e:
        raise ConfigError(f"{where}: " + "; ".join(dict.fromkeys(_problem(err) for err in e.errors()))) from None


def _shown(value: object) -> str:
    """A value for a message: short, however long or deep it is."""
    try:
        text = repr(value)
    except RecursionError:
        text = f"a {type(value).__name__} nested deeply"
    return text if len(text) <= 200 else f"{text[:200]}..."


def _problem(err: Any) -> str:
    key = ".".join(str(p) for p in err["loc"][:1])[:100]
    if err["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, ExportConfig.model_fields, n=1, cutoff=0.0)
        return f"unknown setting {key!r} (did you mean {near[0]!r}?)"
    if err["type"] == "missing":
        return f"{key} is required"
    if err["type"] == "value_error":
        message = err["msg"].removeprefix("Value error, ")
        return f"{key}: {message}" if key else message
    if err["type"] == "string_pattern_mismatch":
        return f"{key}: {_shown(err['input'])} is not a name (1 to 100 letters, digits and . _ + -, not starting with a dot)"
    if err["type"] in ("greater_than_equal", "less_than_equal", "finite_number", "too_short"):
        return f"{key}: {err['msg']}, got {_shown(err['input'])}"
    return f"{key} must be {_expected(ExportConfig.model_fields[key].annotation)}, got {_shown(err['input'])}"


def _expected(annotation: Any) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, args))
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_expected(a) for a in args if a is not type(None)))
    if origin is Annotated:
        return _expected(args[0])
    if origin is list:
        return "a list"
    return {int: "an integer", float: "a number", bool: "true or false", str: "a string"}.get(
        annotation, str(annotation)
    )


def read_toml(path: Path) -> dict[str, Any]:
    """The settings of a TOML file, unchecked."""
    try:
        with path.open("rb") as f:
            data = f.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise ConfigError(f"{path}: more than {MAX_FILE:,} bytes: no file of settings")
        if max(line.count(b".") for line in data.split(b"\n")) > MAX_DOTS:
            raise ConfigError(f"{path}: a line with over {MAX_DOTS} dots: no file of settings")
        return tomllib.loads(data.decode())
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"{path}: cannot be read: {getattr(e, 'strerror', None) or 'not UTF-8 text'}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not valid TOML: nested too deeply") from None
    except (tomllib.TOMLDecodeError, ValueError) as e:  # ValueError: a date that is none, a number of 5,000 digits
        raise ConfigError(f"{path}: not valid TOML: {e}") from None


def load(path: Path, overrides: Mapping[str, Any] | None = None) -> ExportConfig:
    """Read a TOML file, let `overrides` take precedence, and check the result."""
    return parse({**read_toml(path), **(overrides or {})}, str(path))

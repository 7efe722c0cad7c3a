"""Optional dependencies: check that the packages of an extra are installed before a feature starts to work."""

from importlib.util import find_spec

from penstock.errors import UserError

__all__ = ["missing_extra", "require_extra"]


def require_extra(extra: str, feature: str, **packages: str) -> None:
    """Raise UserError if a package is not installed. `packages` maps module names to names on PyPI."""
    for module, package in packages.items():
        if find_spec(module) is None:  # does not import the module
            raise missing_extra(extra, feature, package)


def missing_extra(extra: str, feature: str, package: str) -> UserError:
    return UserError(
        f"{feature} needs the package {package}, which is not installed; run `pip install 'penstock[{extra}]'`."
    )

"""Optional dependencies: check that the modules of an extra are installed before a feature starts to work."""

from importlib.util import find_spec

from penstock.errors import UserError


def require_extra(extra: str, feature: str, *modules: str) -> None:
    for module in modules:
        if not _is_installed(module):
            raise UserError(
                f"{feature} needs the module {module}, which is not installed; run `pip install 'penstock[{extra}]'`."
            )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None  # imports the packages that contain the module, but not the module
    except ModuleNotFoundError:
        return False

"""Optional dependencies: check that the modules of an extra are installed before a feature starts to work."""

from importlib.util import find_spec

from penstock.errors import UserError


def require_extra(extra: str, feature: str, *modules: str) -> None:
    for module in modules:
        if find_spec(module) is None:  # does not import a top-level module
            raise UserError(
                f"{feature} needs the module {module}, which is not installed; run `pip install 'penstock[{extra}]'`."
            )

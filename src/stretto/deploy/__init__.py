"""Replicas of the server on Ray Serve: one engine each, behind one address (stretto docs how-to/replicas).

Nothing here imports Ray until it is used; it comes with the extra `ray`. `stretto.deploy.application:build`
is what a YAML file for `serve deploy` names, `stretto.deploy.cluster` is behind `stretto deploy`.
"""

from __future__ import annotations

from stretto.errors import StrettoError

RAY_VERSION = "2.60"  # routing by bodies uses a hook of Ray's that is not public: other versions may lack it


def require_ray() -> None:
    """Raise, with the extra to install, unless Ray is there in the version that this was made for."""
    try:
        import ray
        import ray.serve
    except ImportError as error:
        raise StrettoError(
            f"{error.name or 'ray'} is missing; replicas need: pip install 'stretto[ray]'"
        ) from None
    if not ray.__version__.startswith(f"{RAY_VERSION}."):
        raise StrettoError(
            f"Ray {ray.__version__} is installed, and replicas need {RAY_VERSION}: pip install 'stretto[ray]'"
        )

"""A snapshot of the resources, ready to serve: guardrails are compiled, targets are resolved on first use."""

from __future__ import annotations

from penstock.gateway.dialects.base import Dialect
from penstock.gateway.guardrails import ContentPolicies
from penstock.gateway.refusal import Refusal
from penstock.gateway.resources.config import GatewayConfig
from penstock.gateway.resources.snapshot import Model, Snapshot
from penstock.gateway.routes import PREFIX
from penstock.gateway.upstream.attempt import Timeouts
from penstock.gateway.upstream.hosts import HostKey, Hosts
from penstock.gateway.upstream.target import Target, base_of


class CompiledSnapshot:
    """The resources of one generation, as a worker uses them."""

    def __init__(self, snapshot: Snapshot, generation: int, config: GatewayConfig, hosts: Hosts) -> None:
        self.snapshot = snapshot
        self.generation = generation
        self._hosts = hosts
        self._targets: dict[tuple[str, str], tuple[Target, ...]] = {}
        self._upstream = config.upstream
        self._timeouts: dict[tuple[Target, str, bool], Timeouts] = {}
        self.guards_for = ContentPolicies(snapshot, config.guardrails).for_request

    def targets(self, model: Model, dialect: Dialect) -> tuple[Target, ...]:
        """Return the direct models that can serve a model on a route. Raise Refusal if there are none."""
        targets = self._targets.get((model.name, dialect.name))
        if targets is None:
            targets = self._targets[model.name, dialect.name] = self._resolve_targets(model, dialect)
        return targets

    def _resolve_targets(self, model: Model, dialect: Dialect) -> tuple[Target, ...]:
        names = (model.name,) if model.routing is None else model.routing.targets
        direct = [self.snapshot.models[name] for name in names if name in self.snapshot.models]
        if dialect.provider is not None:
            direct = [candidate for candidate in direct if candidate.provider == dialect.provider]
            if not direct:
                raise Refusal(
                    400,
                    "invalid_request_error",
                    f"The {dialect.api_name} needs a target with the provider `{dialect.provider}`, and `{model.name}` "
                    "has none.",
                )
        keyed = [(candidate, self.snapshot.provider_keys.get(candidate.provider_key or "")) for candidate in direct]
        targets = [
            Target(candidate, key, dialect, self._hosts)
            for candidate, key in keyed
            if key is not None and key.adapter == dialect.adapter
        ]
        if targets:
            return tuple(targets)
        if all(key is None for _, key in keyed):
            raise Refusal(503, "provider_unavailable", f"The model `{model.name}` has no provider key.")
        raise Refusal(
            400,
            "invalid_request_error",
            f"The path {PREFIX}{dialect.path} needs a provider key with the adapter `{dialect.adapter}`, and `{model.name}` "
            "has none.",
            param="model",
        )

    def timeouts(self, target: Target, group: Model, stream: bool) -> Timeouts:
        """Return the timeouts of an attempt. Those of the target override those of its group, and these override the
        configuration. For streams, `stream_timeout` overrides `timeout` on each level. 0 is no limit."""
        timeouts = self._timeouts.get((target, group.name, stream))
        if timeouts is None:
            timeouts = self._timeouts[target, group.name, stream] = self._resolve_timeouts(target.model, group, stream)
        return timeouts

    def _resolve_timeouts(self, direct: Model, group: Model, stream: bool) -> Timeouts:
        config = self._upstream
        total: float | None = None
        silence: float | None = None
        for level_total, level_silence in (
            (direct.timeout_s, direct.stream_timeout_s),
            (group.timeout_s, group.stream_timeout_s),
            (config.timeout_s, config.stream_timeout_s),
        ):
            if total is None:
                total = level_total
            if silence is None:
                silence = level_silence or level_total
        if stream:
            return Timeouts(config.connect_timeout_s or None, config.max_stream_s or None, silence or None)
        return Timeouts(config.connect_timeout_s or None, total or None, None)

    def host_keys(self) -> set[HostKey]:
        """Return all hosts that this snapshot uses."""
        keys = set()
        for model in self.snapshot.models.values():
            key = self.snapshot.provider_keys.get(model.provider_key or "")
            base = base_of(key, model.provider) if key is not None else None
            if key is not None and base is not None:
                keys.add((base.scheme, base.host, base.port, key.verify_tls))
        return keys

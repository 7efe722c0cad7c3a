"""A snapshot made ready to serve: its guardrails compiled, its targets resolved when they are first asked for."""

from __future__ import annotations

from penstock.gateway.guardrails import Guards
from penstock.gateway.refusal import Refusal
from penstock.gateway.relay.hosts import HostKey, Hosts
from penstock.gateway.relay.upstream import Target, base_of
from penstock.gateway.relay.upstream_attempt import Timeouts
from penstock.gateway.resources.config import GatewayConfig
from penstock.gateway.resources.snapshot import Model, Snapshot
from penstock.gateway.routes import Route

__all__ = ["CompiledSnapshot"]

RESPONSES_PROVIDER = "openai"
ADAPTER = "openai"


class CompiledSnapshot:
    def __init__(self, snapshot: Snapshot, generation: int, config: GatewayConfig, hosts: Hosts) -> None:
        self.snapshot = snapshot
        self.generation = generation
        self._hosts = hosts
        self._targets: dict[tuple[str, Route], tuple[Target, ...]] = {}
        self._upstream = config.upstream
        self._limits: dict[tuple[Target, str, bool], Timeouts] = {}
        guards = Guards(snapshot.guardrails, config.guardrails)
        self.guards = guards if guards.has_input or guards.has_output else None

    def targets(self, model: Model, route: Route) -> tuple[Target, ...]:
        """The direct models that can serve this one on this route; a Refusal when there is none."""
        found = self._targets.get((model.name, route))
        if found is None:
            found = self._targets[model.name, route] = self._find(model, route)
        return found

    def _find(self, model: Model, route: Route) -> tuple[Target, ...]:
        names = (model.name,) if model.routing is None else model.routing.targets
        direct = [self.snapshot.models[name] for name in names if name in self.snapshot.models]
        if route == "responses":
            direct = [one for one in direct if one.provider == RESPONSES_PROVIDER]
            if not direct:
                raise Refusal(
                    400,
                    "invalid_request_error",
                    f"The Responses API is only available for models of the provider `openai`, and `{model.name}` is "
                    "not one of them.",
                )
        targets = []
        for one in direct:
            key = self.snapshot.provider_keys.get(one.provider_key or "")
            if key is not None and key.adapter == ADAPTER:
                targets.append(Target(one, key, route, self._hosts))
        if not targets:
            raise Refusal(
                503, "provider_unavailable", f"No provider that this gateway can talk to serves `{model.name}`."
            )
        return tuple(targets)

    def limits(self, target: Target, group: Model, stream: bool) -> Timeouts:
        """How long this may take. What the target says counts before what its group says, and that before the
        configuration; within each, a stream's own limit before the general one. 0 is none."""
        found = self._limits.get((target, group.name, stream))
        if found is None:
            found = self._limits[target, group.name, stream] = self._find_limits(target.model, group, stream)
        return found

    def _find_limits(self, direct: Model, group: Model, stream: bool) -> Timeouts:
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
            return Timeouts(config.connect_timeout_s or None, None, silence or None)
        return Timeouts(config.connect_timeout_s or None, total or None, None)

    def host_keys(self) -> set[HostKey]:
        """Every host that this snapshot can lead to."""
        found = set()
        for model in self.snapshot.models.values():
            key = self.snapshot.provider_keys.get(model.provider_key or "")
            base = base_of(key, model.provider) if key is not None else None
            if key is not None and base is not None:
                found.add((base.scheme, base.host, base.port, key.verify_tls))
        return found

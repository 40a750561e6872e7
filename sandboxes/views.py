"""Whether the server is well: for load balancers, supervisors and tests."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from sandboxes.house import House


def house_of(request: HttpRequest) -> House | None:
    """The server that this request came through; None where the site runs without one."""
    scope: dict[str, Any] = getattr(request, "scope", {})
    return scope.get("moorage.house")


@require_safe
def health(request: HttpRequest) -> JsonResponse:
    """200 when new sessions are welcome; 503 in a drain, or while the lease is lost."""
    house = house_of(request)
    if house is None:
        return JsonResponse({"status": "no server"}, status=503)
    if house.draining or house.lease.lost:
        return JsonResponse({"status": "draining" if house.draining else "lease lost"}, status=503)
    return JsonResponse({"status": "ready"})


@require_safe
def live(request: HttpRequest) -> JsonResponse:
    """200 as long as the process answers at all."""
    return JsonResponse({"status": "live"})


@require_safe
def status(request: HttpRequest) -> JsonResponse:
    """Figures of this process, told to its own machine only."""
    house = house_of(request)
    if house is None or request.META.get("REMOTE_ADDR") not in ("127.0.0.1", "::1"):
        return JsonResponse({"error": "only this machine may ask"}, status=403)
    registry, pool = house.registry, house.pool
    return JsonResponse(
        {
            "pid": os.getpid(),
            "server": house.lease.server,
            "sessions": Counter(str(session.state) for session in registry.sessions.values()),
            "running": len(registry.running),
            "heavy": sum(session.heavy for session in registry.live),
            "workers": {"busy": pool.busy, "warm": pool.warm},
            "parks": registry.parks,
            "resumes": registry.resumes,
            "autosaves": registry.autosaves,
            "unsaved_bytes": registry.unsaved,
            "held_bytes": registry.held_bytes,
            "frames_passed": registry.frames_passed,
        }
    )

"""The ASGI application: pages and the API by Django, sessions by the doors of `sandboxes`."""

import os

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.urls import path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django_application = get_asgi_application()

from sandboxes.consumers import MontyConsumer  # noqa: E402  (its models need the apps that the line above loads)

application = ProtocolTypeRouter(
    {
        "http": django_application,
        # Django's types know views alone.
        "websocket": URLRouter([path("monty-ws/", MontyConsumer.as_asgi())]),  # type: ignore[arg-type]
    }
)
